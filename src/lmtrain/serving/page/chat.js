// The chat page. What a model writes is only ever set as text; nothing is loaded from elsewhere.
"use strict";
const at = (id) => document.getElementById(id);
const STORE = "lmtrain.chat";
const SETTINGS = ["system", "temperature", "top_p", "top_k", "max_tokens"];
let model = "";
let answering = null; // what stops the answer that is being written

function load() {
  try {
    const found = JSON.parse(localStorage.getItem(STORE));
    if (found && Array.isArray(found.talks) && found.talks.length) return found;
  } catch (problem) { /* kept by another version, or not allowed: begin anew */ }
  return { talks: [{ turns: [] }], current: 0, settings: {} };
}
const state = load();
const talk = () => state.talks[state.current];

function save() {
  try { localStorage.setItem(STORE, JSON.stringify(state)); } catch (problem) { /* full or not allowed */ }
}

function made(name, text, press) {
  const element = document.createElement(name);
  if (text) element.textContent = text;
  if (press) { element.type = "button"; element.addEventListener("click", press); }
  return element;
}

function showList() {
  at("list").replaceChildren(...state.talks.map((each, index) => {
    const row = made("div");
    const open = made("button", each.turns[0]?.content.slice(0, 60) || "Empty conversation", () => show(index));
    if (index === state.current) open.setAttribute("aria-current", "true");
    const remove = made("button", "×", () => forget(index));
    remove.setAttribute("aria-label", "Delete conversation");
    row.append(open, remove);
    return row;
  }));
}

function shown(turn, index) {
  const item = made("li");
  item.className = turn.role + (turn.wrong ? " wrong" : "");
  const said = made("div", turn.content);
  said.className = "said";
  const acts = made("div");
  acts.className = "acts";
  acts.append(turn.role === "user" ? made("button", "Edit", () => edit(index)) : made("button", "Retry", () => retry(index)));
  item.append(said, acts);
  return item;
}

function showTurns() {
  at("turns").replaceChildren(...talk().turns.map(shown));
  at("turns").scrollTop = at("turns").scrollHeight;
}

function show(index) {
  stop();
  state.current = index;
  at("side").classList.remove("open");
  at("menu").setAttribute("aria-expanded", "false");
  showList(); showTurns(); save();
}

function forget(index) {
  stop();
  state.talks.splice(index, 1);
  if (!state.talks.length) state.talks.push({ turns: [] });
  show(Math.min(state.current, state.talks.length - 1));
}

function begin() {
  if (talk().turns.length) state.talks.unshift({ turns: [] });
  show(talk().turns.length ? 0 : state.current);
  at("text").focus();
}

function edit(index) {
  stop();
  at("text").value = talk().turns[index].content;
  talk().turns.length = index;
  showTurns(); showList(); save();
  at("text").focus();
}

function retry(index) {
  stop();
  talk().turns.length = index;
  answer();
}

function stop() {
  if (answering) answering.abort();
}

function headers() {
  const key = at("key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: "Bearer " + key }) };
}

function asked(turns) {
  const number = (id) => (at(id).value === "" ? undefined : Number(at(id).value));
  const told = at("system").value.trim() ? [{ role: "system", content: at("system").value }] : [];
  const messages = [...told, ...turns.filter((turn) => !turn.wrong).map(({ role, content }) => ({ role, content }))];
  return { model, messages, stream: true, temperature: number("temperature"), top_p: number("top_p"),
           top_k: number("top_k"), max_tokens: number("max_tokens") };
}

async function refusal(response) {
  try { return (await response.json()).error.message; } catch (problem) { return "The server answered " + response.status; }
}

async function* chunks(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event === "data: [DONE]") return;
      yield JSON.parse(event.slice("data: ".length));
    }
  }
}

async function answer() {
  const mine = (answering = new AbortController());
  const here = talk();
  const body = JSON.stringify(asked(here.turns));
  const turn = { role: "assistant", content: "" };
  here.turns.push(turn);
  showTurns(); showList(); busy(true);
  const said = at("turns").lastElementChild.querySelector(".said");
  try {
    const response = await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body, signal: mine.signal });
    if (!response.ok) throw new Error(await refusal(response));
    for await (const chunk of chunks(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      turn.content += chunk.choices[0]?.delta.content || "";
      said.textContent = turn.content;
      at("turns").scrollTop = at("turns").scrollHeight;
    }
  } catch (problem) {
    if (problem.name !== "AbortError") Object.assign(turn, { wrong: true, content: problem.message });
  }
  if (!turn.content) Object.assign(turn, { wrong: true, content: "No answer." });
  if (answering === mine) { answering = null; busy(false); }
  if (here === talk()) showTurns();
  save();
}

function busy(is) {
  at("stop").hidden = !is;
  at("send").hidden = is;
}

function send(event) {
  event.preventDefault();
  const text = at("text").value;
  if (!text.trim() || answering) return;
  // A question whose answer failed is asked no more: turns alternate.
  const turns = talk().turns;
  while (turns.length && turns.at(-1).wrong) turns.length -= 2;
  turns.push({ role: "user", content: text });
  at("text").value = "";
  answer();
}

async function name() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) throw new Error(await refusal(response));
    const served = (await response.json()).data[0];
    model = served.id;
    at("model").textContent = served.chat_format === "plain" ? `${model} (in plain words: no chat format)` : model;
  } catch (problem) {
    at("model").textContent = problem.message;
  }
}

for (const id of SETTINGS) {
  if (state.settings[id] !== undefined) at(id).value = state.settings[id];
  at(id).addEventListener("change", () => { state.settings[id] = at(id).value; save(); });
}
at("key").addEventListener("change", name); // kept nowhere
at("new").addEventListener("click", begin);
at("stop").addEventListener("click", stop);
at("form").addEventListener("submit", send);
at("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); at("form").requestSubmit(); }
});
at("menu").addEventListener("click", () => {
  at("menu").setAttribute("aria-expanded", String(at("side").classList.toggle("open")));
});
name();
show(Math.min(state.current, state.talks.length - 1));
