"""`easyscale serve`: a page, a JSON API and Prometheus metrics, from the same pictures that the commands show."""
