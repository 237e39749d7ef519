"""One file for each check: its specification, a pure parse, a verdict. `registry` names them."""
