"""A side stream for tests without a GPU."""


class LateStream:
    """A side stream that does nothing before it must, which is the worst that a GPU can do to a
    program that forgets to wait. A GPU may also do it early: ``rush`` does some of it."""

    def __init__(self):
        self.tasks = []
        self.ready = False

    def wait_for_compute(self):
        self.ready = True

    def run(self, task):
        assert self.ready, "a move was queued without waiting for the computation"
        self.tasks.append(task)

    def rush(self, count):
        done, self.tasks = self.tasks[:count], self.tasks[count:]
        for task in done:
            task()

    def join(self):
        self.rush(len(self.tasks))
        self.ready = False
