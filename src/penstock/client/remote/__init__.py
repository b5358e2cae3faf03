"""Commands carried over the network: transports, requests and their answers, reconnects, and prefetching."""
