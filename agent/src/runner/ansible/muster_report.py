# Written by muster-agent: tells it, in files, which task runs, and which failed and why. Output goes its usual way.
# Keeps durably, across the attempts at an item, which handlers were notified and have not run.
DOCUMENTATION = """
name: muster_report
type: notification
short_description: tells muster-agent what failed, and keeps what handlers are due
description: >
  One JSON object a line, into the file that MUSTER_ANSIBLE_REPORT names. The handlers that are due go into the file
  that MUSTER_ANSIBLE_HANDLERS names; its last line that is whole counts.
"""
import json
import os
import re

from ansible.playbook.handler import Handler
from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback import CallbackBase


def message(result):
    for part in result.get("results", []):
        if part.get("failed") or part.get("unreachable"):
            return message(part)
    said = [result.get(key) for key in ("msg", "stderr", "censored")]
    return ": ".join(str(text).strip() for text in said if text) or "it says nothing"


def label(task):
    """Name as the playbook has it: the same in every run, and with no value of a variable in it."""
    written = task._ds if isinstance(task._ds, dict) else {}
    name = str(written.get("name") or task.action)
    return "%s : %s" % (task._role.get_name(), name) if task._role else name


def place(task):
    """Names a task across attempts, though an archive is unpacked elsewhere each time."""
    return "%s (%s)" % (label(task), os.path.basename(str(task.get_path())))


def pattern(text):
    return re.compile(".*".join(map(re.escape, re.split(r"\{\{.*?\}\}", text))), re.DOTALL)


def may_be_same(one, other):
    """Can two names be equal when their templates have got their values?"""
    if "{{" in one:
        return "{{" in other or pattern(one).fullmatch(other) is not None
    return one == other if "{{" not in other else pattern(other).fullmatch(one) is not None


def answers(handler, notification):
    listens = handler.listen or []
    names = [handler.name, handler.get_name(), label(handler)]
    names += [listens] if isinstance(listens, str) else list(listens)
    return any(may_be_same(str(name), str(notification)) for name in names if name)


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "muster_report"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.hash = os.environ["MUSTER_ANSIBLE_HASH"]
        self.play = None
        self.current = None
        self.seen = set()
        # By label. `task`: the one that notifies; `sure`: Ansible said that it is notified; `at_once`: a run that
        # succeeded left it, so that it need not wait for that task.
        self.due = {}
        with open(os.environ["MUSTER_ANSIBLE_HANDLERS"], encoding="utf-8") as record:
            for line in record.read().splitlines():
                self.due = {one["name"]: dict(one, sure=True) for one in json.loads(line)["due"]}
        self.carried = set(self.due)
        self.kept = self.as_text()

    def tell(self, what):
        # What a program printed need not be text: bytes that are none become question marks.
        line = json.dumps(what, ensure_ascii=False) + "\n"
        with open(os.environ["MUSTER_ANSIBLE_REPORT"], "ab") as report:
            report.write(line.encode("utf-8", "replace"))

    def as_text(self):
        return json.dumps({"due": [self.due[name] for name in sorted(self.due)]})

    def keep(self):
        """Is durable before anything follows from it: without it no task may go on."""
        text = self.as_text()
        if text == self.kept:
            return
        try:
            with open(os.environ["MUSTER_ANSIBLE_HANDLERS"], "ab") as record:
                record.write(text.encode() + b"\n")
                record.flush()
                os.fsync(record.fileno())
        except OSError as error:
            # Of any other exception Ansible makes a warning.
            raise SystemExit("ERROR! cannot record which handlers are due: %s" % error)
        self.kept = text

    def handlers(self):
        for block in self.play.handlers if self.play else []:
            for handler in block.block:
                self.seen.add(label(handler))
                yield handler

    def notify(self, host, wanted):
        for handler in self.handlers():
            if label(handler) in self.carried & set(self.due) and wanted(self.due[label(handler)]):
                handler.notify_host(host)

    def shows(self, task):
        """News for whoever looks: by its written name, for a value in it may be secret."""
        new = os.environ["MUSTER_ANSIBLE_PROGRESS"] + ".task"
        with open(new, "w", encoding="utf-8") as progress:
            json.dump({"task": label(task)}, progress)
        os.replace(new, os.environ["MUSTER_ANSIBLE_PROGRESS"])

    def begins(self, task):
        """What a task notifies may be due as soon as it begins: it may be cut off behind its change."""
        self.current = task
        for handler in self.handlers():
            if any(answers(handler, name) for name in task.notify or []):
                one = {"name": label(handler), "task": place(task), "sure": False, "hash": self.hash}
                self.due.setdefault(label(handler), one)
        self.keep()

    def ends(self, host, task, changed):
        if isinstance(task, Handler):
            self.has_run(task)
        if not changed:
            unchanged = place(task)
            self.due = {
                name: one for name, one in self.due.items() if one["sure"] or one["task"] != unchanged
            }
        self.keep()
        self.notify(host, lambda one: one["task"] == place(task))

    def has_run(self, handler):
        if isinstance(handler, TaskInclude):
            # Its tasks are yet to run; they have when nothing has failed.
            if label(handler) in self.due:
                self.due[label(handler)]["sure"] = False
        else:
            self.due.pop(label(handler), None)

    def v2_playbook_on_play_start(self, play):
        self.play = play

    def v2_playbook_on_task_start(self, task, is_conditional):
        self.begins(task)
        self.shows(task)

    def v2_playbook_on_handler_task_start(self, task):
        self.begins(task)
        self.shows(task)

    def v2_runner_on_start(self, host, task):
        self.notify(host, lambda one: one.get("at_once"))

    def v2_playbook_on_notify(self, handler, host):
        one = {"name": label(handler), "task": place(self.current), "hash": self.hash}
        self.due[label(handler)] = dict(self.due.get(label(handler), one), sure=True)
        self.keep()

    def v2_runner_on_ok(self, result):
        self.ends(result._host, result._task, result.is_changed())

    def v2_runner_on_skipped(self, result):
        self.ends(result._host, result._task, False)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        if not ignore_errors:
            self.tell({"task": result._task.get_name(), "message": message(result._result)})
        elif isinstance(result._task, Handler):
            self.has_run(result._task)
            self.keep()

    def v2_runner_on_unreachable(self, result):
        self.tell({"task": result._task.get_name(), "message": message(result._result)})

    def v2_playbook_on_no_hosts_matched(self):
        self.tell({"no_hosts": True})

    def v2_playbook_on_stats(self, stats):
        if not stats.failures and not stats.dark:
            # A run that came to its end has had every handler run that was notified, and may have had that may be.
            left = {name: dict(one, at_once=True) for name, one in self.due.items() if one["sure"]}
            # No handler of this playbook: dropped if another content of the item notified it.
            missing = [name for name in left if name not in self.seen]
            gone = [name for name in missing if left[name].get("hash") != self.hash]
            self.due = {name: one for name, one in left.items() if name not in gone}
            self.keep()
            self.tell({"gone": gone, "missing": [name for name in missing if name not in gone]})
        counts = {}
        for host in stats.processed:
            for what, count in stats.summarize(host).items():
                counts[what] = counts.get(what, 0) + count
        self.tell({"counts": counts})
