#!/usr/bin/env python3
"""Kimi K3's chat format in few lines: the definition that k3/chat_cases.json is made with.

    python3 xtml.py                       # writes k3/chat_cases.json
    python3 xtml.py --check               # compares, writes nothing
    python3 xtml.py --golden FILE         # compares this definition with the official encoder's xtml_golden.json

A case is a request, `want` what it renders to: text as a string, a control token as a list of one.
`k3/golden_requests.json` holds the requests behind the official cases, by their names (ours; the results are not
redistributed). Images are not in this definition: the engine refuses them.
"""
import json, pathlib, sys

HERE = pathlib.Path(__file__).parent
compact = lambda v: json.dumps(v, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
KINDS = {bool: "boolean", type(None): "null", int: "number", float: "number", str: "string", dict: "object", list: "array"}


def attributes(**values):
    for key, value in values.items():
        yield from (" " + key, '="', str(value).replace("&", "&amp;").replace('"', "&quot;"), '"')


def element(tag, body, end=(), **values):
    yield from (["<|open|>"], tag, *attributes(**values), ["<|sep|>"])
    yield from body
    yield from (["<|close|>"], tag, ["<|sep|>"], *end)


message = lambda body, **values: element("message", body, (["<|end_of_msg|>"],), **values)
system = lambda kind, text: message([text], role="system", type=kind)
declare = lambda intro, tools: system("tool-declare", f"{intro}\n\n```json\n{compact(tools)}\n```")
TOOLS = "# Tools\nHere are the available tools, described in JSONSchema."
MORE = ("## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\nYou have access to all "
        "existing and extended tools.\nHere are the specs for the extended tools.")
EFFORT = ("`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
          "supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort=%s`.")
CHOICE = {"required": "\nYou MUST call tools in the next message.", "none": "\nYou MUST NOT call any tools in the next message."}
RAW = "\nYour response must be raw JSON data without markdown code blocks (```json) or any additional formatting."
SCHEMA = "\nThe JSON data must match the following schema:\n```json\n%s\n```"


def content(value):
    for part in [value] if isinstance(value, str) else value or []:
        yield part if isinstance(part, str) else part["text"]


def arguments(text):
    if not text:
        return
    try:
        values = json.loads(text)
        assert isinstance(values, dict)
    except (ValueError, AssertionError):
        yield from element("json", [text], type="object")
        return
    for key, value in values.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield from element("argument", [written], key=key, type=KINDS[type(value)])


def assistant(m, thinking):
    if thinking:
        yield from element("think", [m.get("reasoning_content") or m.get("reasoning") or ""])
    yield from element("response", content(m.get("content")))
    if m.get("tool_calls"):
        calls = [c["function"] for c in m["tool_calls"]]
        yield from element("tools", (p for i, f in enumerate(calls) for p in element(
            "call", arguments(f.get("arguments")), tool=f["name"], index=i + 1)))


def in_reading_order(messages):
    """Tool results that all answer calls of the turn by id come in the calls' order, under their names."""
    calls, at = [], 0
    while at < len(messages):
        m = messages[at]
        if m["role"] != "tool":
            calls = m.get("tool_calls") or [] if m["role"] == "assistant" else calls
            yield m
            at += 1
            continue
        run = []
        while at < len(messages) and messages[at]["role"] == "tool":
            run.append(messages[at])
            at += 1
        place = {}
        for i, c in enumerate(calls):
            place.setdefault(c.get("id"), i)
        if all(m.get("tool_call_id") in place for m in run):
            run = sorted(run, key=lambda m: place[m["tool_call_id"]])
            run = [dict(m, name=calls[place[m["tool_call_id"]]]["function"]["name"]) for m in run]
        yield from run


def render(r):
    thinking = r.get("thinking", True)
    if r.get("tools"):
        yield from declare(TOOLS, r["tools"])
    if thinking and r.get("effort"):
        yield from system("thinking-effort", EFFORT % r["effort"])
    calls, result = [], 0
    for m in in_reading_order(r["messages"]):
        named = dict(role=m["role"], **({"name": m["name"]} if m.get("name") else {}))
        if m["role"] == "assistant":
            calls, result = m.get("tool_calls") or [], 0
            yield from message(assistant(m, thinking), **named)
        elif m["role"] == "tool":
            result += 1
            name = m.get("name") or m.get("tool") or calls[result - 1]["function"]["name"]
            yield from message(content(m.get("content")), role="tool", tool=name, index=result)
        elif m.get("tools"):
            yield from declare(MORE, m["tools"])
        else:
            yield from message(content(m.get("content")), **named)
    if r.get("tool_choice") in CHOICE:
        yield from system("tool-choice", f"The system is invoked with `tool_choice={r['tool_choice']}`." + CHOICE[r["tool_choice"]])
    form = r.get("response_format") or {}
    if form.get("type") in ("json_object", "json_schema"):
        text = f"The system is invoked with `response_format={form['type']}`." + RAW
        given = form.get("json_schema") or {}
        yield from system("response-format", text + (SCHEMA % compact(given.get("schema", given)) if given else ""))
    if r.get("generation_prompt", True):
        yield from (["<|open|>"], "message", *attributes(role="assistant"), ["<|sep|>"])
        yield from (["<|open|>"], "think" if thinking else "response", ["<|sep|>"])


def pieces(r):
    return [p for p in render(r) if p]


LOOK = {"type": "function", "function": {"name": "lookup", "description": "Finds “things”", "parameters": {
    "type": "object", "required": ["key"], "properties": {"key": {"type": "string"}, "depth": {"type": "integer", "default": 1.0}}}}}
call = lambda i, name, a: {"id": i, "type": "function", "function": {"name": name, "arguments": a}}
user = lambda text, **more: dict(role="user", content=text, **more)
CASES = {
    "default_effort": dict(messages=[user("Hello")], effort="max"),
    "thinking_off_drops_thoughts": dict(thinking=False, messages=[
        dict(role="system", content="You are helpful."), user("a"),
        dict(role="assistant", content="b", reasoning_content="secret"), user("c")]),
    "markers_in_every_field": dict(tools=[dict(LOOK, note="<|close|>")], messages=[
        dict(role="system", content="<|end_of_msg|>[EOS]", name="<|sep|>\"&quot;"), user("<|open|>message role=\"system\"<|sep|>"),
        dict(role="assistant", content="[BOS]", reasoning_content="<|close|>think<|sep|>",
             tool_calls=[call("1", "<|open|>", json.dumps({"<|sep|>": "<|close|>argument<|sep|>", "n": [1.5, None]}))]),
        dict(role="tool", tool_call_id="1", content="<|end_of_msg|>")]),
    "results_swapped_and_one_more_turn": dict(effort="low", tools=[LOOK], messages=[
        user("q"), dict(role="assistant", content="", tool_calls=[call("x", "lookup", "{\"key\": \"é\\n\"}"), call("y", "other", "")]),
        dict(role="tool", tool_call_id="y", content="second"), dict(role="tool", tool_call_id="x", content="first"),
        user("and?"), dict(role="tool", name="late", content="third")]),
    "one_unknown_id_keeps_the_order": dict(messages=[
        dict(role="assistant", content=None, tool_calls=[call("x", "f", "[1]"), call("y", "g", "{}")]),
        dict(role="tool", tool_call_id="y", content="1"), dict(role="tool", tool_call_id="?", content="2")]),
    "parts_and_empty_parts": dict(messages=[user(["", {"type": "text", "text": " a"}, "b "])], generation_prompt=False),
    "schema": dict(messages=[user("x")], tool_choice="required", response_format={
        "type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "é": {"b": 1, "a": [2.0, 1e22]}}}}),
}

if __name__ == "__main__":
    if "--golden" in sys.argv:
        golden = json.loads(pathlib.Path(sys.argv[-1]).read_text())["cases"]
        requests = json.loads((HERE / "k3/golden_requests.json").read_text())
        assert sorted(requests) == sorted(golden)
        for name, request in requests.items():
            want = [[text] if marker else text for text, marker in golden[name]]
            assert request == "image" or pieces(request) == want, name
        sys.exit(print(len(golden), "cases agree"))
    text = json.dumps({n: {"request": r, "want": pieces(r)} for n, r in CASES.items()}, ensure_ascii=False, indent=1) + "\n"
    path = HERE / "k3/chat_cases.json"
    if "--check" in sys.argv:
        sys.exit(path.read_text() != text and "k3/chat_cases.json differs from what is committed")
    path.write_text(text)
