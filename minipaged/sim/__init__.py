"""The paper's experiments on a virtual clock: workloads, and what they are compared with."""
