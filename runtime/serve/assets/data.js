// Data of the server, or of the file if the page is a report.

const embedded = document.getElementById("data");
const contents = embedded === null ? null : JSON.parse(embedded.textContent);

// Whether the page is a report: there is no server.
export const offline = contents !== null;

// The answer to GET api/PATH.
export async function load(path) {
  if (offline) {
    if (path in contents) return contents[path];
    throw new Error("This is not part of the report.");
  }
  return answer(await fetch(`api/${path}`));
}

// The answer to POST api/PATH.
export async function send(path, body) {
  return answer(await fetch(`api/${path}`, { method: "POST", body: JSON.stringify(body) }));
}

async function answer(response) {
  const text = await response.text();
  if (response.ok) return JSON.parse(text);
  let message = text;
  try { message = JSON.parse(text).error; } catch { /* The body is plain text. */ }
  throw new Error(message || `The server answered ${response.status}.`);
}

// Samples of the metrics, oldest first. They are collected on every page, so that charts have a past.
export const samples = [];
const MAX_SAMPLES = 180;
const listeners = new Set();

export function onSample(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export async function startLive(onState) {
  if (offline) {
    samples.push(await load("metrics"));
    onState("report");
    return;
  }
  const source = new EventSource("api/live");
  source.addEventListener("open", () => onState("live"));
  source.addEventListener("error", () => onState("lost"));
  source.addEventListener("metrics", (event) => {
    samples.push(JSON.parse(event.data));
    if (samples.length > MAX_SAMPLES) samples.shift();
    listeners.forEach((listener) => listener());
  });
}
