"""Stage 10, arrivals: the answer is the engine's own, and here is why it is so.

Read ``minipaged/sim/arrivals.py`` beside this.

**Why gamma.** A Poisson process has no knob: its rate is all there is. Real traffic has the same
mean and other gaps, a minute of silence and then forty requests at once. A gamma distribution has
two numbers. One is spent on the mean, and the other is left over for the question that the paper
does not ask: what if the requests do not come one by one?

**Why the scale is what it is.** Mean = shape x scale, variance = shape x scale². With the shape
``burstiness`` and the mean ``1 / rate`` the scale has no choice left, and the coefficient of
variation comes out as ``1 / sqrt(burstiness)``. The word is unlucky: more "burstiness" is less
burst. It is vLLM's, and it is better to be wrong together than to have two conventions.

**Why a loop.** The number of arrivals in an hour is random: 7,200 give or take 85. Who draws 7,200
gaps has an "hour" that ends at 59 or at 61 minutes, and has taken away the very thing that makes a
queue long. So gaps are drawn until they have passed the end, and what lies past it is cut off.

**Why quanta.** The authors' experiments drew a Poisson number each 10 ms. The sum of independent
Poisson numbers is a Poisson number, so the counts of any whole second are the same as without
quanta. Only requests of the same 10 ms come at the same instant, and a step of the engine takes
longer than that.

**Why rescale.** Two seeds at 2 requests a second offer 1.97 and 2.03. Near the limit of a system
that is the difference between a queue and none. Stretched to the same length they differ only in
the pattern. What it costs: the last arrival is no longer random.

**Why a generator is handed in.** ``np.random.seed`` is a global variable: whoever else draws from
it changes your arrivals. A generator is a value, and a run can say which it was.

Usual mistakes
--------------

* ``scale = 1 / rate``: right for a burstiness of 1, and at 0.25 a quarter of the gap, so four
  times the load. The system then looks bad in bursts, for a reason that has nothing to do with
  bursts.
* ``rng.exponential(rate)``: NumPy asks for the mean of the gap, not for the rate.
* A first arrival at 0. All systems then begin with the same small queue.
* ``(last of N) - 1`` somewhere in rescale(): N arrivals from 0 on have N gaps.

Cost
----

One vectorized draw, and a second small one in a run out of hundreds. An hour of 30 requests a
second takes a few milliseconds."""

from minipaged.sim.arrivals import Times, arrival_times, arrivals_by_quantum, rescale

__all__ = ["Times", "arrival_times", "arrivals_by_quantum", "rescale"]
