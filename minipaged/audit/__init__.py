"""What a kernel costs, measured without a GPU.

Two independent views of one Triton kernel:

* its machine code: compiled ahead of time as the JIT would (:mod:`~minipaged.audit.compiler`),
  assembled and disassembled (:mod:`~minipaged.audit.toolchain`), read
  (:mod:`~minipaged.audit.report`) and held against what is asked of it
  (:mod:`~minipaged.audit.thresholds`);
* its memory traffic: a run in Triton's interpreter, every load and store counted and checked
  (:mod:`~minipaged.audit.memory_trace`).

Compiling and interpreting exclude each other: Triton decides at its import. So what compiles runs
in a child process (:mod:`~minipaged.audit.child`).
"""
