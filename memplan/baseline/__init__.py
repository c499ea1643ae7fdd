"""The lock file: committed peaks, and how the models of today compare with them."""
