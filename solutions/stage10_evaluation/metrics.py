"""Stage 10, metrics: the answer is the engine's own, and here is why it is so.

Read ``minipaged/sim/metrics.py`` beside this.

**Why so many of them.** The paper has one: normalized latency, the end-to-end latency over the
length of the output. It is fair to long and short outputs, and it hides who waited for what. A
request of 500 tokens that waits for 10 s and then streams at 30 ms a token has 0.05 s per token:
the plot says that all is well, and the user has looked at an empty page for 10 s. TTFT sees that,
ITL sees when the stream stops in the middle, and percentiles see that it happened to somebody.

**Why TPOT leaves the first token out, twice.** Latency and count. The first token comes out of the
prefill: its time belongs to queue and prompt. What is left are ``output_len - 1`` tokens in
``e2el - ttft`` seconds. Three tools mean three things by the word, so never compare two of them
without the definition beside the number.

**Why ITL is pooled.** The mean gap of a request *is* its TPOT. If ITL were made of means too, it
would be the same number under another name. It is there for the one gap of 9 s, which a preemption
has made, and which a mean over 500 tokens turns into 18 ms more. So every gap goes into the pool,
and the 99th percentile of the pool is a gap that somebody has seen. The 99th percentile of means is
nothing that happened to anyone.

**Why a percentile is on a line.** With 200 requests the 99th percentile falls between the second
and the third from above. A rule that takes either jumps when one request more is there. A line
between them does not, and NumPy does the same.

**Why served() refuses.** An overloaded system finishes the lucky ones. Their latencies are fine:
the others are still in the queue. If the run is cut there and the mean taken over the finished,
then the longer the queue, the better the number. There are two honest ways out: let the run drain,
or do not judge it. What *failed* is something else: it has no latency, so it is counted, under its
own name.

**Why goodput is all bounds, a second.** One bound alone can be bought: answer the first token of
everybody at once and let them starve after that. And a share of good requests can be bought by
refusing the rest. A rate cannot.

**Why sustained_rate() stops at the first crossing.** Past the knee a latency is a queue that has
grown for as long as the run was, so it depends on the length of the run and on luck. Below it, it
hardly depends on anything. The rate at which a curve leaves a stated level can be compared between
two papers. A latency past the knee cannot.

Usual mistakes
--------------

* ``tpot = e2el / output_len``: that is the normalized latency.
* ``np.mean([np.percentile(gaps, 99) for ...])``.
* The standard deviation over n - 1: that is for a sample. The pool is all there is.
* Milliseconds on one side of ``<=`` and seconds on the other: then everybody keeps every bound.
* A request for four samples that counts once in normalized latency. In the paper's experiments with
  parallel sampling it counts four times.
* 0 for a latency of nothing. It would win every comparison.

Cost
----

O(n log n) in the number of gaps, for the sort. An hour of ShareGPT at 2 requests a second has 2.4
million gaps, and takes less than a second.
"""

from minipaged.sim.metrics import (
    DEFINITIONS,
    SLO_METRICS,
    Metric,
    Values,
    definition,
    e2el,
    goodput,
    inter_token_latencies,
    normalized_latency,
    percentile,
    pooled,
    served,
    summarize,
    summary_statistics,
    sustained_rate,
    tpot,
    ttft,
)

__all__ = [
    "DEFINITIONS",
    "SLO_METRICS",
    "Metric",
    "Values",
    "definition",
    "e2el",
    "goodput",
    "inter_token_latencies",
    "normalized_latency",
    "percentile",
    "pooled",
    "served",
    "summarize",
    "summary_statistics",
    "sustained_rate",
    "tpot",
    "ttft",
]
