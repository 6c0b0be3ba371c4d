"""How the reason of a job names other jobs, and what of that a caller may read.

The id of another project's job is marked where it is written, so that it can be left out wherever the text has gone
since: into the record, into events, into a plan.
"""

import re

from service.security.roles import Caller

_MARK = " of another project"
_MARKED = re.compile(rf"(?<![\w.-])(?!job{_MARK})[\w.-]+{_MARK}")
_SEVERAL = re.compile(rf"a job{_MARK}(?:, a job{_MARK})+")


def named_to(job_id: str, project: str | None, reader: str) -> str:
    """How the job, of `project`, is named to the people of project `reader`; None: its project is not known."""
    return job_id if project == reader else job_id + _MARK


def readable(text: str, caller: Caller) -> str:
    """The text without the ids of jobs that do not exist for the caller."""
    if caller.sees_all or _MARK not in text:
        return text
    return _SEVERAL.sub("jobs of other projects", _MARKED.sub(f"a job{_MARK}", text))
