// Pages work without this script. It refreshes live parts, and validates a configuration in the editor.
"use strict";

const REFRESH_MS = 5000;
const CHECK_MS = 400;

async function refresh() {
  const live = [...document.querySelectorAll("[data-live]")];
  if (!live.length || document.hidden) return;
  try {
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of live) {
      const found = fresh.getElementById(part.id);
      // Keep a part that holds the focus: the user is about to press or scroll something in it.
      if (found && !part.contains(document.activeElement) && found.innerHTML !== part.innerHTML) part.replaceWith(found);
    }
  } catch {
    return; // The console does not answer; the next refresh tries again.
  }
}

function validateWhileTyping(editor) {
  const results = document.getElementById("checked");
  const name = document.getElementById("name");
  let timer = 0;
  let newest = 0;

  async function check() {
    const number = ++newest;
    const body = JSON.stringify({ text: editor.value, name: name ? name.value : editor.dataset.name });
    let found;
    try {
      const answer = await fetch(editor.dataset.check, { method: "POST", body, headers: { "Content-Type": "application/json" } });
      found = answer.ok ? await answer.json() : null;
    } catch {
      found = null;
    }
    if (number === newest && found) show(found);
  }

  function show(found) {
    results.replaceChildren();
    const lines = [...found.problems.map((text) => ["problem", text]), ...found.notices.map((text) => ["notice", text])];
    for (const [kind, text] of lines) {
      const line = document.createElement("pre");
      line.className = kind;
      line.textContent = (kind === "problem" ? "Problem: " : "Notice: ") + text;
      results.append(line);
    }
    if (!found.problems.length) results.append("No problems found.");
  }

  function checkSoon() {
    clearTimeout(timer);
    timer = setTimeout(check, CHECK_MS);
  }

  editor.addEventListener("input", checkSoon);
  if (name) name.addEventListener("input", checkSoon);
  if (editor.value.trim()) check();
}

for (const editor of document.querySelectorAll("[data-check]")) validateWhileTyping(editor);
setInterval(refresh, REFRESH_MS);
