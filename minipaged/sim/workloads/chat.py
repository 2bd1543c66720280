"""Conversations: the paper's chatbot, and one whose prompts share what they can."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from minipaged.errors import ConfigError
from minipaged.sim.lengths import MAX_MODEL_LEN, load_lengths
from minipaged.sim.workloads.checks import require_at_least, require_positive, require_share
from minipaged.sim.workloads.draw import draw_arrivals
from minipaged.sim.workloads.request import Piece, Request, Workload

#: Of a chat's history and query, the last so many tokens are the prompt (paper, section 6.5); the
#: authors' code leaves 8 positions of the model unused.
CHAT_PROMPT_LEN = 1024
CHAT_OUTPUT_LEN = MAX_MODEL_LEN - CHAT_PROMPT_LEN - 8


class _Conversation:
    """What was said so far, as pieces of text with ids of their own."""

    def __init__(self, ids: Iterator[int], pieces: tuple[Piece, ...] = ()) -> None:
        self._ids = ids
        self.pieces = pieces
        self.tokens = sum(tokens for _, tokens in pieces)

    def ask(self, time: float, query: int, output: int) -> Request:
        """A turn: the prompt is all that was said, then the query. Query and answer become part
        of what was said."""
        content = (*self.pieces, (next(self._ids), query))
        prompt_len, reply = self.tokens + query, next(self._ids)
        self.pieces = (*content, (reply, output))
        self.tokens = prompt_len + output
        return Request(time, prompt_len, output, content=content, reply=reply)

    def ask_of_the_end(self, time: float, query: int, output: int, most: int) -> Request:
        """A turn whose prompt is the last ``most`` tokens of what :meth:`ask` makes it.

        A prompt that was cut begins in the midst of a text, and the next one later in it: it has
        no prefix in common with any other.
        """
        prompt_len = self.tokens + query
        if prompt_len <= most:
            return self.ask(time, query, output)
        self.pieces, self.tokens = (), prompt_len + output
        return Request(time, most, output)


def chatbot(
    rate: float,
    duration: float,
    seed: int = 0,
    new_conversation: float = 0.1,
    burstiness: float = 1.0,
) -> Workload:
    """The workload of figure 17, by the rules of the authors' experiments.

    Requests arrive as a Poisson process. Each opens a conversation with probability
    ``new_conversation``, and else is the next turn of an open one, any of them alike. Its prompt
    is the last 1,024 tokens of the history and the query, and its output at most
    2,048 - 1,024 - 8. Queries and answers have the lengths of ShareGPT. When a conversation is
    over is not published: here none is.

    The turns of a conversation that was not cut yet begin with the text of the turns before, and
    their ``content`` shows it. The paper keeps no KV cache from turn to turn, and neither do
    arrivals wait for replies: a turn may come before the one ahead of it is answered.

    Raises:
        ConfigError: an argument is out of its range.
        RequestError: no request arrives in that time.
    """
    require_share(new_conversation=new_conversation)
    times, rng = draw_arrivals(rate, duration, seed, burstiness)
    turns = load_lengths("sharegpt").sample(len(times), rng)
    opens = (rng.random(len(times)) < new_conversation).tolist()
    choices = rng.random(len(times)).tolist()
    ids = itertools.count()
    talks: list[_Conversation] = []
    requests = []
    for time, (query, answer), is_new, choice in zip(times, turns, opens, choices):
        if is_new or not talks:
            talks.append(talk := _Conversation(ids))
        else:
            talk = talks[int(choice * len(talks))]
        output = min(answer, CHAT_OUTPUT_LEN)
        requests.append(talk.ask_of_the_end(time, query, output, CHAT_PROMPT_LEN))
    return Workload(f"chatbot at {rate:g} req/s", tuple(requests))


def prefix_chat(
    rate: float,
    duration: float,
    seed: int = 0,
    *,
    num_apps: int = 8,
    system_len: tuple[int, int] = (256, 1024),
    turns: float = 5.4,
    think_time: float = 60.0,
    max_model_len: int = MAX_MODEL_LEN,
    burstiness: float = 1.0,
) -> Workload:
    """Beyond the paper: chat in which almost every prompt begins with text that is known already.

    Several applications talk to their users through one model. A conversation begins with the
    application's system prompt, and each prompt holds the whole history, never cut: it is over
    when the model has no positions left for the next turn, or the user has had enough.

    There are ``rate * think_time`` users. Each request comes from any of them alike, so that a
    user waits ``think_time`` on average from one request to the next. All begin anew, so the
    histories grow during the first few times ``turns * think_time`` seconds. Queries and answers
    have the lengths of ShareGPT, as far as they fit behind the longest system prompt.

    Args:
        num_apps: applications; the k-th is used ``1/k`` as often as the first (Zipf's law).
        system_len: tokens of the shortest and the longest system prompt; the others lie between
            them in even ratios, and which application has which is drawn.
        turns: of a conversation on average, if the model's positions do not end it before;
            5.4 is the mean of ShareGPT's conversations with at most 8K tokens.
        think_time: seconds from one request of a user to the next, on average.
        max_model_len: tokens of a prompt and its output at most.

    Raises:
        ConfigError: an argument is out of its range.
        RequestError: no request arrives in that time, or the model has no positions for a turn
            behind the longest system prompt.
    """
    shortest, longest = system_len
    require_at_least(1, num_apps=num_apps, system_len=shortest, turns=turns)
    require_positive(think_time=think_time)
    if longest < shortest:
        raise ConfigError(f"system_len {system_len}: the longest is below the shortest")
    times, rng = draw_arrivals(rate, duration, seed, burstiness)
    pairs = load_lengths("sharegpt").sample(len(times), rng, max_model_len - longest)
    lens = np.rint(np.geomspace(shortest, longest, num_apps)).astype(np.int64)
    systems = [((app, tokens),) for app, tokens in enumerate(rng.permutation(lens).tolist())]
    popularity = 1 / np.arange(1, num_apps + 1)
    apps = rng.choice(num_apps, len(times), p=popularity / popularity.sum()).tolist()
    num_users = math.ceil(rate * think_time)
    users = rng.integers(num_users, size=len(times)).tolist()
    enough = (rng.random(len(times)) < 1 / turns).tolist()

    ids = itertools.count(num_apps)
    talks: dict[int, _Conversation] = {}
    requests = []
    for time, (query, output), app, user, last in zip(times, pairs, apps, users, enough):
        talk = talks.get(user)
        if talk is None or talk.tokens + query + output > max_model_len:
            talk = talks[user] = _Conversation(ids, systems[app])
        requests.append(talk.ask(time, query, output))
        if last:
            del talks[user]
    return Workload(f"prefix-heavy chat at {rate:g} req/s", tuple(requests), max_model_len)
