"""What things cost: the price book, and how the time of a run becomes money. The books are in ``store/ledger``."""
