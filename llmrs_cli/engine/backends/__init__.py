"""One contract, several implementations; 'reference' is the definition."""
