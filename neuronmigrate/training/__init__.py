"""What the codemods of training scripts share: fields, their defaults by release, and the unit they form."""
