"""From stored winners to a cluster that runs them."""
