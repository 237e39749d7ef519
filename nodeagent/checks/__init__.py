"""One file for each check: what it sees, a pure parse, a verdict. `registry` names them."""
