// Who reads the page, and the actions that this person may request. Without it the page only shows.
"use strict";
(() => {
  const NEEDS_REASON = new Set(["quarantine", "exempt", "pin", "stop"]);
  const match = location.pathname.match(/^\/nodes\/(.+)$/);
  const node = match ? decodeURIComponent(match[1]) : "";
  const make = (tag, text = "", set = {}) => {
    const made = document.createElement(tag);
    made.textContent = text;
    return Object.assign(made, set);
  };
  const send = (path, body) =>
    fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Sickbay-Action": "1" },
      body: JSON.stringify(body),
    });

  function showReader(reader) {
    const line = make("span", "Logged in as " + reader.user + ". ", { id: "reader" });
    if (["token", "static-token", "oidc"].includes(reader.how)) {
      const out = make("form", "", { method: "post", action: "/logout", className: "inline" });
      out.append(make("button", "Log out", { type: "submit" }));
      line.append(out);
    }
    document.querySelector("footer").append(line);
  }

  function field(label, input) {
    const line = make("p");
    const id = "action-" + input.name;
    line.append(make("label", label, { htmlFor: id }), " ", Object.assign(input, { id }));
    return line;
  }

  function offerActions(may) {
    const section = make("section", "", { id: "actions", className: "panel" });
    section.setAttribute("aria-labelledby", "actions-title");
    const form = make("form");
    const action = make("select", "", { name: "action" });
    for (const one of may) {
      if (one !== "quarantine") action.append(make("option", one, { value: one }));
      else for (const how of ["cordon", "drain"]) action.append(make("option", how, { value: how }));
    }
    const reason = make("input", "", { name: "reason", maxLength: 1000, autocomplete: "off" });
    const duration = make("input", "", { name: "duration", value: "8h", size: 6 });
    const length = field("For", duration);
    const dry = make("input", "", { name: "dry", type: "checkbox" });
    const result = make("p", "", { id: "action-result" });
    result.setAttribute("role", "status");
    const sayFields = () => {
      const of = ["cordon", "drain"].includes(action.value) ? "quarantine" : action.value;
      length.hidden = of !== "exempt";
      reason.required = NEEDS_REASON.has(of);
    };
    action.addEventListener("change", sayFields);
    form.append(field("Action", action), field("Reason", reason), length);
    form.append(field("Only try whether it is allowed", dry));
    const button = make("button", "Do it", { type: "submit" });
    form.append(button);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const chosen = action.value;
      const quarantines = chosen === "cordon" || chosen === "drain";
      const question = document.body.dataset.drain.replace("{node}", node);
      if (chosen === "drain" && !dry.checked && !confirm(question)) return;
      const name = quarantines ? "quarantine" : chosen;
      const path = node ? "/api/v1/nodes/" + encodeURIComponent(node) + "/" + name : "/api/v1/" + name;
      const body = { reason: reason.value, dry_run: dry.checked };
      if (quarantines) body.action = chosen;
      if (chosen === "exempt") body.duration = duration.value;
      result.textContent = "...";
      button.disabled = true; // a second click would request it again
      try {
        let response = await send(path, body);
        let answer = await response.json();
        if (response.status === 428 && confirm(answer.error + " Go on?")) {
          response = await send(path, { ...body, cancel_order: true });
          answer = await response.json();
        }
        const begin = answer.dry_run ? "Nothing was written. " : "";
        result.textContent = response.ok ? begin + answer.message : answer.error + " " + answer.hint;
        result.className = response.ok ? "" : "error";
      } catch (error) {
        result.textContent = "No answer: " + error.message;
        result.className = "error";
      }
      button.disabled = false;
    });
    section.append(make("h2", node ? "Act on this node" : "Act on the fleet", { id: "actions-title" }));
    section.append(form, result);
    sayFields();
    (document.querySelector(".side") || document.getElementById("main")).append(section);
  }

  async function start() {
    const query = node ? "?node=" + encodeURIComponent(node) : "";
    const response = await fetch("/api/v1/access" + query, { cache: "no-store" });
    const none = { error: "the answer is " + response.status, hint: "Reload the page." };
    const reader = await response.json().catch(() => none);
    const trouble = response.ok ? reader.trouble : reader.error + ". " + reader.hint;
    if (reader.user) showReader(reader);
    if (trouble) {
      const text = "Your rights are not known, so no action is offered: " + trouble;
      document.querySelector("footer").append(make("span", text, { id: "reader-trouble" }));
    }
    const here = node || location.pathname === "/";
    if (here && reader.actions && reader.may.length) offerActions(reader.may);
  }
  start();
})();
