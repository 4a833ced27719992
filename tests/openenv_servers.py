"""Servers in threads of this process, over real sockets, and what they are asked.

Ours, and one with OpenEnv's faults.
"""

import contextlib
import itertools
import json
import socket
import threading

from websockets.sync.client import connect

from lactchain_extras.ecosystems.openenv_server import Served, server_at


@contextlib.contextmanager
def running(pages, play=None):
    """The URL of some pages and sessions, while they are served."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = server_at(listening, pages, play)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        threading.Thread(target=server.shutdown, daemon=True).start()
        thread.join(10)


def running_world(config, **options):
    """The URL of a world that we serve."""
    served = Served(config, **options)
    return running(served.pages, served.play)


def session(url, **options):
    return connect(f"ws{url.removeprefix('http')}/ws", **options)


def said(session, message):
    """The reply to a message, as an object or as it is sent."""
    session.send(json.dumps(message) if isinstance(message, dict) else message)
    return json.loads(session.recv())


def ask(url, *messages):
    """The replies of a new session to messages, one by one."""
    with session(url) as player:
        return [said(player, message) for message in messages]


def reset(**data):
    return {"type": "reset", "data": data}


def step(text):
    return {"type": "step", "data": {"text": text}}


class FaultyGame:
    """Guess a digit within three tries, as an OpenEnv server may have it.

    Its faults: the digit is drawn from a generator of all sessions, whatever the seed; arguments of
    reset that it does not know are dropped; its time limit looks like an ending; a good guess that
    is late is paid in part.
    """

    digits = itertools.cycle("3141592653")
    action = {"properties": {"guess": {"type": "string"}, "note": {"type": "string"}}}
    required = ("guess",)

    def __init__(self):
        self.requests = []

    def running(self):
        schema = {"action": self.action | {"required": list(self.required)}}
        return running({"/schema": schema, "/health": {"status": "healthy"}}, self.play)

    def play(self, connection):
        late = []
        for text in connection:
            message = json.loads(text)
            self.requests.append(message)
            if message["type"] == "close" or message["data"].get("guess") == "hang up":
                return
            late.append(json.dumps(self.answer(message)))
            while late and message["data"].get("guess") != "hesitate":
                connection.send(late.pop(0))

    def answer(self, message):
        if message["type"] == "reset":
            self.digit, self.tries = next(self.digits), 0
            return self.told(f"A digit, not {(int(self.digit) + 1) % 10}.", None, False)
        guess = message["data"]["guess"]
        if guess == "crash":
            return {"type": "error", "data": {"message": "no digit", "code": "EXECUTION_ERROR"}}
        self.tries += 1
        if guess == self.digit:
            return self.told("yes", 1.0 if self.tries < 3 else 0.5, True)
        return self.told("no", 0.0, self.tries == 3)

    def told(self, text, reward, done):
        data = {"observation": {"reply": text, "tries": []}, "reward": reward, "done": done}
        return {"type": "observation", "data": data}
