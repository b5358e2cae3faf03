import { useEffect, useRef, useState } from "preact/hooks";
import { ask, may, settingSchemas, who, type QueueSettings, type Schema } from "./api";
import { Button, Cli, say, Trouble, useLoaded } from "./parts";
import { QueueHeader } from "./queue";
import { number } from "./text";

const range = (schema: Schema): string => {
  const of = schema.anyOf?.find((each) => each.type !== "null") ?? schema;
  const unit = schema["x-unit"] ? ` ${schema["x-unit"]}` : "";
  const limits = of.minimum !== undefined && of.maximum !== undefined ? `${number(of.minimum)} to ${number(of.maximum)}${unit}.` : "";
  const nothing = schema.anyOf?.some((each) => each.type === "null") ? "Empty: none." : "";
  const value = schema["x-default"] ?? "";
  const initial = value === "" ? "" : `Default: ${/^\d+$/.test(value) ? number(Number(value)) : value}.`;
  return [limits, nothing, initial].filter(Boolean).join(" ");
};
const shownAs = (value: unknown): string =>
  value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);

/** What was edited and not saved, by person and queue: it is there again when somebody comes back. */
const unsaved = new Map<string, Record<string, string>>();

export function Settings({ name }: { name: string }) {
  const queue = useLoaded(() => ask("GET /v1/queues/{queue}", { queue: name }), [name], true);
  return (
    <main>
      <QueueHeader name={name} at="settings" />
      <Trouble error={queue.error} />
      {queue.value && <Form name={name} settings={queue.value.settings as Record<string, unknown>} changed={queue.again} />}
    </main>
  );
}

function Form({ name, settings, changed }: { name: string; settings: Record<string, unknown>; changed: () => Promise<void> }) {
  const schemas = useLoaded(settingSchemas, []);
  const place = `${who()?.name} ${name}`;
  const [edited, setEdited] = useState<Record<string, string>>(unsaved.get(place) ?? {});
  const latest = useRef(edited);
  latest.current = edited;
  const isEdited = Object.keys(edited).length > 0;
  useEffect(
    () => () => {
      unsaved.set(place, latest.current);
      if (Object.keys(latest.current).length) say(`Changes of ${name} are not saved yet. You find them under Settings.`);
    },
    [],
  );
  useEffect(() => {
    if (!isEdited) return;
    const hold = (event: Event) => event.preventDefault(); // the browser asks before it closes the page
    addEventListener("beforeunload", hold);
    return () => removeEventListener("beforeunload", hold);
  }, [isEdited]);
  const [error, setError] = useState<Error>();
  const known = schemas.value ?? {};
  const isDefault = (each: string): boolean => String(known[each]?.["x-default"] ?? "").replaceAll(",", "") === (shownAs(settings[each]) || "none");
  const names = Object.keys(settings).filter((each) => each in known);
  const read = (each: string, text: string): unknown => {
    const schema = known[each]!;
    const of = schema.anyOf?.find((one) => one.type !== "null") ?? schema;
    if (text === "" && schema.anyOf) return null;
    if (of.type === "string") return text;
    if (of.type === "number" || of.type === "integer") return Number(text);
    return JSON.parse(text);
  };
  const save = async (event: Event) => {
    event.preventDefault();
    try {
      const changes = Object.fromEntries(Object.entries(edited).map(([each, text]) => [each, read(each, text)]));
      await ask("PATCH /v1/queues/{queue}", { queue: name, body: changes as QueueSettings });
      setEdited({});
      setError(undefined);
      say("Saved.");
      await changed();
    } catch (problem) {
      setError(problem as Error);
    }
  };
  const words = Object.entries(edited).flatMap(([each, text]) => [`--${each.replaceAll("_", "-")}=${text || "none"}`]);
  return (
    <section>
      <header class="bar">
        <h2>Settings</h2>
        {!may("admin", name) && <small>You may see the settings, but not change them.</small>}
      </header>
      <form class="settings" onSubmit={save}>
        {names.map((each) => {
          const schema = known[each]!;
          const now = edited[each] ?? shownAs(settings[each]);
          const put = (text: string) => {
            const { [each]: _, ...rest } = edited;
            setEdited(text === shownAs(settings[each]) ? rest : { ...rest, [each]: text });
          };
          const choices = schema.enum ?? (schema.type === "boolean" ? ["true", "false"] : undefined);
          const fixed = each === "kind" || each === "partitions" || !may("admin", name);
          return (
            <div key={each} class={each in edited ? "setting edited" : "setting"}>
              <label for={`setting-${each}`}>
                {each}
                {schema["x-unit"] && <small> in {schema["x-unit"]}</small>}
                {known[each]?.["x-default"] !== undefined && !isDefault(each) && !(each in edited) && <span class="tag">set</span>}
              </label>
              {choices ? (
                <select id={`setting-${each}`} value={now} disabled={fixed} onChange={(event) => put(event.currentTarget.value)}>
                  {choices.map((choice) => (
                    <option key={choice}>{choice}</option>
                  ))}
                </select>
              ) : (
                <input id={`setting-${each}`} value={now} disabled={fixed} onInput={(event) => put(event.currentTarget.value)} />
              )}
              <small>
                {schema.description?.replaceAll("`", "")} {range(schema)}
              </small>
            </div>
          );
        })}
        <Trouble error={error} />
        {isEdited && (
          <div class="savebar">
            <Cli words={["queue", "configure", name, ...words]} />
            <div class="buttons">
              <Button onClick={() => setEdited({})}>Undo</Button>
              <button type="submit" class="main">
                Save {Object.keys(edited).length} {Object.keys(edited).length === 1 ? "change" : "changes"}
              </button>
            </div>
          </div>
        )}
      </form>
    </section>
  );
}
