"""A percentage of nodes as a number of nodes. Pure."""


def allowance(total: int, percent: float) -> int:
    """How many of ``total`` are ``percent``, such that a pool of three can lose one.

    0 % is none: a person who writes that means it.
    """
    if total <= 0 or percent <= 0:
        return 0
    return max(1, int(total * percent / 100 + 1e-9))  # tolerates the float's last bit
