import { expect, test } from "vitest";
import { bodyBytes, bytes, command, counted, duration, errorGroup, hex, prettyJson, seconds } from "./text";

test("errors are grouped as the server groups them", () => {
  expect(errorGroup("Timeout: no answer from 10.0.0.7 after 3.5 s for order 'A-17'")).toBe("Timeout: no answer from # after # s for order #");
  expect(errorGroup("no user 5f2c9a00-1111-4222-8333-444455556666\nat line 3")).toBe("no user #");
  expect(errorGroup("")).toBe("no error was given");
});

test("sizes and times are short", () => {
  expect([bytes(0), bytes(1023), bytes(1536), bytes(10 * 1024 * 1024)]).toEqual(["0 B", "1023 B", "1.5 KiB", "10 MiB"]);
  expect([duration(5), duration(61), duration(7500), duration(86400 * 3)]).toEqual(["5 s", "1 m", "2 h 5 m", "3 d"]);
  expect([seconds(0.0123), seconds(1.53), seconds(75)]).toEqual(["12 ms", "1.5 s", "1 m"]);
});

test("one is one, and none is none", () => {
  expect([0, 1, 2000].map((each) => counted(each, "message"))).toEqual(["no messages", "1 message", "2,000 messages"]);
  expect(counted(2, "delivery", "deliveries")).toBe("2 deliveries");
});

test("a body in base64 is shown as its bytes", () => {
  expect(hex(bodyBytes("/wBB", "base64"))).toMatch(/^00000000 {2}ff 00 41 +\.\.A$/);
});

test("only objects and arrays are indented as JSON", () => {
  expect(prettyJson('{"a":1}')).toBe('{\n  "a": 1\n}');
  expect(prettyJson("12")).toBeNull();
  expect(prettyJson("{broken")).toBeNull();
});

test("a command can be pasted into a shell, whatever a name holds", () => {
  expect(command("send", "orders", "it's $HOME")).toBe("penstock send orders 'it'\\''s $HOME'");
});

test("a name that looks like an option is none, and no key press hides in a command", () => {
  expect(command("queue", "purge", "-rf", "--url", "http://a")).toBe("penstock queue purge --url http://a -- -rf");
  expect(command("redrive", "a.dead", "--group=it \u001b[31m'x'\r")).toBe("penstock redrive a.dead $'--group=it \\u001b[31m\\'x\\'\\u000d'");
});

test("JSON is indented as it was sent: no number, name or text of it changes", () => {
  const sent = '{"id": 12345678901234567890, "amount": 150.0, "a":1, "a":2, "t":"\\u00e9 {[,:]} \\"x\\\\", "e":[ ], "o":{}, "l":[1e400,-0.0,{"x":null}]}';
  const shown = prettyJson(sent)!;
  expect(shown.split("\n")).toEqual([
    "{",
    '  "id": 12345678901234567890,',
    '  "amount": 150.0,',
    '  "a": 1,',
    '  "a": 2,',
    '  "t": "é {[,:]} \\"x\\\\",',
    '  "e": [],',
    '  "o": {},',
    '  "l": [',
    "    1e400,",
    "    -0.0,",
    "    {",
    '      "x": null',
    "    }",
    "  ]",
    "}",
  ]);
  expect(prettyJson("[".repeat(9000) + "]".repeat(9000))).toBeNull();
  expect(prettyJson(JSON.stringify(["x\\".repeat(100_000)]))).toContain("x\\\\x");
});

test("escapes are shown as the characters that they stand for, unless these cannot be seen or would end the text", () => {
  const sent = String.raw`["\u674e\u5c0F", "\uD83C\uDF70\u003cb\u003e", "\u0022\u005c\u0000\u200b\u202e\ud800", "\\u00e9\\\u00e9", "e\u0301"]`;
  expect(prettyJson(sent)!.split("\n").slice(1, -1)).toEqual([
    '  "李小",',
    '  "🍰<b>",',
    String.raw`  "\u0022\u005c\u0000\u200b\u202e\ud800",`,
    String.raw`  "\\u00e9\\é",`,
    '  "e\u0301"',
  ]);
});
