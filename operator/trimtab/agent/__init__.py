"""The node agent: reads the GPUs of one node, and reports them as a GPUNode and as metrics."""
