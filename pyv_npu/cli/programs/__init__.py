"""Commands that make programs and look into them."""
