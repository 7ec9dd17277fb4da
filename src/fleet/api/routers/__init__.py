"""One router a noun. A route checks who asks, calls one service and shows what it answered."""
