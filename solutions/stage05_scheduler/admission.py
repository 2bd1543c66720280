"""x"""

from minipaged.scheduling.admission import Admission

__all__ = ["Admission"]
