// Keeps the page as the fleet is: listens to the event stream, asks for the page anew when something
// has changed, and puts in only what differs. Without it the page is still whole, as of its time.
"use strict";
(() => {
  const PAUSE = 400; // ms between two refreshes
  const DEAF = 25000; // ms without a sign of life (a beat comes every 10 s)
  const LONGEST_WAIT = 15000;
  const STANDINGS = {
    o: ["ok", "well"],
    u: ["unknown", "unknown"],
    s: ["silent", "silent"],
    w: ["warning", "warning"],
    h: ["held", "held back"],
    q: ["quarantined", "in quarantine"],
  };
  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
  const root = document.documentElement;

  // -- time: the server's clock counts, not this machine's ----------------------------
  let ahead = Date.parse(document.body.dataset.now) - Date.now();
  const now = () => Date.now() + ahead;
  const utc = (ms) => new Date(ms).toISOString().slice(11, 19) + " UTC";

  function span(s) {
    if (s < 60) return Math.floor(s) + " s";
    if (s < 3600) return Math.floor(s / 60) + " min";
    if (s < 2 * 86400) return Math.floor(s / 3600) + " h";
    return Math.floor(s / 86400) + " d";
  }

  const CLOCK = { month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };
  let local = false;

  function sayTimes() {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const s = (now() - Date.parse(time.dateTime)) / 1000;
      const text = Math.abs(s) < 2 ? "just now" : s > 0 ? span(s) + " ago" : "in " + span(-s);
      const said = time.querySelector("b");
      if (said && said.textContent !== text) said.textContent = text;
      const clock = time.querySelector("small");
      if (!clock) continue;
      clock.dataset.utc ||= clock.textContent;
      const shown = local ? new Date(time.dateTime).toLocaleString([], CLOCK) : clock.dataset.utc;
      if (clock.textContent !== shown) clock.textContent = shown;
    }
  }

  // -- local time and copies, on demand ----------------------------------------------------
  const zone = document.getElementById("zone");
  const toggle = document.getElementById("local");
  if (toggle) {
    toggle.hidden = false;
    toggle.addEventListener("click", () => {
      local = !local;
      toggle.textContent = local ? "Use UTC" : "Use local time";
      zone.textContent = local ? "Times are this browser's." : "All times are UTC.";
      sayTimes();
    });
  }

  root.classList.add("script");
  document.addEventListener("click", async (event) => {
    const button = event.target.closest && event.target.closest("button.copy");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.previousElementSibling.textContent);
      button.classList.add("copied");
      setTimeout(() => button.classList.remove("copied"), 1500);
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
    }
  });

  // -- the connection, said --------------------------------------------------------------
  const live = document.getElementById("live");
  const lost = document.getElementById("lost");
  let lostAt = 0;

  function sayLive() {
    lostAt = 0;
    live.className = "live on";
    live.lastElementChild.textContent = "live";
    document.body.classList.remove("stale");
    lost.hidden = true;
  }

  function sayLost() {
    if (lostAt) return;
    lostAt = now();
    live.className = "live off";
    live.lastElementChild.textContent = "connection lost";
    document.body.classList.add("stale");
    lost.textContent =
      "Connection lost since " + utc(lostAt) + ". The page shows the state of that time; trying again.";
    lost.hidden = false;
  }

  // -- the stream ------------------------------------------------------------------------
  let source = null;
  let heardAt = Date.now();
  let wait = 500;
  let retry = 0;

  function heard(event) {
    heardAt = Date.now();
    wait = 500;
    const told = JSON.parse(event.data);
    if (told.at) ahead = Date.parse(told.at) - Date.now();
  }

  function open() {
    clearTimeout(retry);
    if (source) source.close();
    heardAt = Date.now();
    source = new EventSource(document.body.dataset.stream);
    source.addEventListener("hello", (event) => {
      heard(event);
      sayLive();
      refresh();
    });
    source.addEventListener("changed", (event) => {
      heard(event);
      refresh();
    });
    source.addEventListener("beat", heard);
    source.onerror = again;
  }

  function again() {
    source.close();
    sayLost();
    heardAt = Date.now(); // the next try begins its own silence
    clearTimeout(retry);
    retry = setTimeout(open, wait * (0.5 + Math.random()));
    wait = Math.min(wait * 2, LONGEST_WAIT);
  }

  // -- the page --------------------------------------------------------------------------
  let busy = false;
  let due = false;

  async function refresh() {
    due = true;
    if (busy || document.hidden) return;
    busy = true;
    while (due && !document.hidden) {
      due = false;
      try {
        await fetchPage();
        await drawMap();
      } catch (error) {
        text = tag = ""; // what is known may be garbled: the next answer is the whole page
        if (!(error instanceof TypeError)) console.error(error); // the stream tells of the network
      }
      await sleep(PAUSE);
    }
    busy = false;
  }

  // The page's text as the server last sent it, and the tag by which the server knows that text.
  let text = "";
  let tag = "";

  async function fetchPage() {
    const url = new URL(location.href);
    url.searchParams.set("fragment", "1");
    if (tag) url.searchParams.set("base", tag);
    url.hash = "";
    const response = await fetch(url, { cache: "no-store" });
    if (!response.ok || response.status === 204) return;
    const answer = await response.text();
    if (response.headers.get("content-type").startsWith("application/json")) {
      const told = JSON.parse(answer);
      const lines = text.split("\n");
      const whole = (part) => {
        if (typeof part === "string") return part;
        if (part.length === 2) return lines.slice(...part).join("\n");
        const [number, first, last, between] = part;
        const line = lines[number];
        return line.slice(0, first) + between + line.slice(line.length - last);
      };
      text = told.parts.map(whole).join("\n");
      tag = told.tag;
    } else {
      text = answer;
      tag = ((response.headers.get("etag") || "").match(/[0-9a-f]{16}/) || [""])[0];
    }
    const fresh = new DOMParser().parseFromString(text, "text/html");
    if (fresh.title) document.title = fresh.title;
    for (const part of fresh.querySelectorAll("[data-live]")) {
      const mine = document.getElementById(part.id);
      if (mine && shape(mine) !== shape(part)) replace(mine, part);
    }
    sayTimes();
  }

  // What an element shows, but for how long ago things were.
  function shape(element) {
    const copy = element.cloneNode(true);
    for (const time of copy.querySelectorAll("time")) time.textContent = "";
    for (const one of copy.querySelectorAll("details")) one.open = false;
    for (const one of copy.querySelectorAll(".fresh")) {
      one.classList.remove("fresh");
      if (!one.className) one.removeAttribute("class");
    }
    return copy.innerHTML.replace(/\s+/g, " ");
  }

  function replace(mine, part) {
    const known = new Set(Array.from(mine.querySelectorAll("[data-key]"), (e) => e.dataset.key));
    const focused = mine.contains(document.activeElement) ? document.activeElement : null;
    const focus = focused && focused.href;
    const focusedFold = focused && focused.tagName === "SUMMARY" && focused.parentElement.dataset.fold;
    const opened = new Set(Array.from(mine.querySelectorAll("details[open]"), (e) => e.dataset.fold));
    mine.replaceChildren(...part.childNodes);
    for (const one of mine.querySelectorAll("details[data-fold]")) {
      one.open = opened.has(one.dataset.fold);
      if (one.dataset.fold === focusedFold) one.querySelector("summary").focus();
    }
    for (const one of mine.querySelectorAll("[data-key]")) {
      if (!known.has(one.dataset.key)) one.classList.add("fresh");
    }
    if (focus) Array.from(mine.querySelectorAll("a"), (a) => a.href === focus && a.focus());
  }

  // -- the map: every node as a cell, in order of name ---------------------------------------
  const figure = document.getElementById("map");
  const canvas = figure && figure.querySelector("canvas");
  const tip = document.getElementById("tip");
  let fleet = null;
  let grid = { columns: 1, pitch: 10 };

  // The letters come with the page; the names, which seldom change, come by themselves.
  async function drawMap() {
    if (!figure) return;
    const [known, ...rows] = document.getElementById("cells").textContent.trim().split(/\s+/);
    figure.hidden = !rows.length;
    if (figure.hidden) return;
    const standings = rows.join("");
    if (!fleet || fleet.known !== known) {
      const response = await fetch(figure.dataset.src, { cache: "no-store" });
      if (!response.ok) return;
      fleet = { known, names: (await response.json()).names };
    }
    if (fleet.names.length !== standings.length) fleet.known = ""; // nodes came in between
    fleet.standings = standings;
    paint();
  }

  function paint() {
    if (!fleet || !fleet.standings || figure.hidden) return;
    const width = canvas.clientWidth;
    const count = fleet.standings.length;
    const fits = Math.floor(Math.sqrt((width * 260) / count));
    const pitch = Math.max(7, Math.min(18, fits));
    const columns = Math.max(1, Math.floor(width / pitch));
    grid = { columns, pitch };
    const height = Math.ceil(count / columns) * pitch;
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(root);
    const colours = {};
    for (const letter in STANDINGS) {
      colours[letter] = style.getPropertyValue("--" + STANDINGS[letter][0] + "-cell").trim();
    }
    for (let i = 0; i < count; i++) {
      const x = (i % columns) * pitch;
      const y = Math.floor(i / columns) * pitch;
      cell(pen, fleet.standings[i], colours, x, y, pitch - (pitch < 8 ? 1 : 2));
    }
  }

  // Shapes as in the legend at every size: a well node is a dot, so that all others stand out.
  function cell(pen, letter, colours, x, y, size) {
    const half = size / 2;
    pen.fillStyle = pen.strokeStyle = colours[letter];
    pen.beginPath();
    if (letter === "s") {
      pen.lineWidth = size > 8 ? 2 : 1.2;
      pen.arc(x + half, y + half, half - 0.6, 0, 2 * Math.PI);
      pen.stroke();
      return;
    } else if (letter === "w") {
      pen.moveTo(x + half, y);
      pen.lineTo(x + size, y + size);
      pen.lineTo(x, y + size);
    } else if (letter === "h") {
      pen.moveTo(x + half, y);
      pen.lineTo(x + size, y + half);
      pen.lineTo(x + half, y + size);
      pen.lineTo(x, y + half);
    } else if (letter === "u") {
      pen.rect(x, y + half - 1, size, 2);
    } else if (letter === "o") {
      pen.arc(x + half, y + half, half * 0.6, 0, 2 * Math.PI);
    } else {
      pen.rect(x, y, size, size);
    }
    pen.fill();
  }

  function under(event) {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / grid.pitch);
    const row = Math.floor((event.clientY - box.top) / grid.pitch);
    const index = row * grid.columns + column;
    const inside = fleet && column >= 0 && column < grid.columns && index < Math.min(fleet.names.length, fleet.standings.length);
    return inside ? index : -1;
  }

  if (figure) {
    canvas.addEventListener("mousemove", (event) => {
      const index = under(event);
      tip.hidden = index < 0;
      if (index < 0) return;
      tip.textContent = fleet.names[index] + ": " + STANDINGS[fleet.standings[index]][1];
      const box = figure.getBoundingClientRect();
      tip.style.left = event.clientX - box.left + "px";
      tip.style.top = event.clientY - box.top + "px";
    });
    canvas.addEventListener("mouseleave", () => (tip.hidden = true));
    canvas.addEventListener("click", (event) => {
      const index = under(event);
      if (index >= 0) location.href = "/nodes/" + encodeURIComponent(fleet.names[index]);
    });
    new ResizeObserver(paint).observe(figure);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  }

  // -- begin ---------------------------------------------------------------------------------
  setInterval(sayTimes, 1000);
  sayTimes();
  if (!document.body.dataset.stream) return; // a page that tells of an error
  document.addEventListener("visibilitychange", () => due && refresh());
  window.addEventListener("pagehide", () => source && source.close());
  window.addEventListener("pageshow", (event) => event.persisted && open());
  setInterval(() => Date.now() - heardAt > DEAF && again(), 5000);
  open();
})();
