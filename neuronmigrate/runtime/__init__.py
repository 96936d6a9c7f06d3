"""placeholder until `device` is merged"""

from __future__ import annotations
