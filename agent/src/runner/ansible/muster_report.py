# Written by muster-agent: tells it, in a file, which task failed and why. Output goes its usual way.
DOCUMENTATION = """
name: muster_report
type: notification
short_description: tells muster-agent what failed
description: One JSON object a line, into the file that MUSTER_ANSIBLE_REPORT names.
"""
import json
import os

from ansible.plugins.callback import CallbackBase


def message(result):
    for part in result.get("results", []):
        if part.get("failed") or part.get("unreachable"):
            return message(part)
    said = [result.get(key) for key in ("msg", "stderr", "censored")]
    return ": ".join(str(text).strip() for text in said if text) or "it says nothing"


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "muster_report"
    CALLBACK_NEEDS_ENABLED = True

    def tell(self, what):
        # What a program printed need not be text: bytes that are none become question marks.
        line = json.dumps(what, ensure_ascii=False) + "\n"
        with open(os.environ["MUSTER_ANSIBLE_REPORT"], "ab") as report:
            report.write(line.encode("utf-8", "replace"))

    def v2_runner_on_failed(self, result, ignore_errors=False):
        if not ignore_errors:
            self.tell({"task": result._task.get_name(), "message": message(result._result)})

    def v2_runner_on_unreachable(self, result):
        self.tell({"task": result._task.get_name(), "message": message(result._result)})

    def v2_playbook_on_no_hosts_matched(self):
        self.tell({"no_hosts": True})

    def v2_playbook_on_stats(self, stats):
        counts = {}
        for host in stats.processed:
            for what, count in stats.summarize(host).items():
                counts[what] = counts.get(what, 0) + count
        self.tell({"counts": counts})
