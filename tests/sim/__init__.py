"""The simulation: the product's own drivers and decisions, many processes in one thread, on a virtual clock, over
stores that lie. Played are only the training, the sockets between agent and runner, and what is behind the stores."""
