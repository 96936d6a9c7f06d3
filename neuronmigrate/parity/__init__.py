"""Whether a migrated program computes what the old one did: recordings, and what their comparison says.

Only `recorder`, `measures` and `comparing` import torch; `recorder` imports nothing of this package.
"""
