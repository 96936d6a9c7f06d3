"""Recordings of legacy scripts, made where the legacy packages or libraries of their time are installed.

    python -m tests.oracle.environment xla FOLDER         # torch_xla 2.9 on the CPU, about 7 GB
    python -m tests.oracle.environment stand_ins FOLDER   # transformers 4.57 and trl 0.24 of the last release
    python -m tests.oracle.record xla FOLDER/bin/python
    python -m tests.oracle.record stand_ins FOLDER/bin/python

The first two take minutes and need a package index; the last two write `recordings/`, which is committed.
`tests/test_oracle.py` compares the after sides of the fixtures with it and needs neither.
"""
