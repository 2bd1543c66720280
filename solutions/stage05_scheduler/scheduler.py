"""x"""

from minipaged.scheduling.scheduler import Scheduler

__all__ = ["Scheduler"]
