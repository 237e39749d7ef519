"""A percentage of nodes as a number of nodes. Pure."""


def allowance(total: int, percent: float) -> int:
    """How many of ``total`` are ``percent``, such that a pool of three can lose one.

    0 % is none: a person who writes that means it.
    """
    if total <= 0 or percent <= 0:
        return 0
    return max(1, int(total * percent / 100 + 1e-9))  # tolerates the float's last bit


#: A fleet of fewer nodes is a small one: 5 % of it are fewer than two.
SMALL_FLEET = 40


def floored(most: int, floor: int, *, of: int, fleet: int) -> int:
    """An allowance of ``most`` nodes with the floor of small fleets, at most half ``of`` them.

    ``fleet``: how many nodes there are in all; in a larger fleet the allowance stays as it is.
    """
    return max(most, min(floor, of // 2)) if most and fleet < SMALL_FLEET else most
