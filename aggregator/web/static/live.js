// Keeps the page as the fleet is: listens to the event stream, requests the page anew when something
// has changed, and puts in only what differs. Without it the page is still whole, as of its time.
"use strict";
(() => {
  const PAUSE = 400; // ms between two refreshes
  const DEAF = 25000; // ms without a sign of life (a beat comes every 10 s)
  const LONGEST_WAIT = 15000;
  const STATES = {
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

  const CLOCK = {
    month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
    timeZoneName: "short",
  };
  let local = false;

  function showTimes() {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const s = (now() - Date.parse(time.dateTime)) / 1000;
      const text = Math.abs(s) < 2 ? "just now" : s > 0 ? span(s) + " ago" : "in " + span(-s);
      const label = time.querySelector("b");
      if (label && label.textContent !== text) label.textContent = text;
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
  const KEPT = "sickbay-local-time";

  function kept(value) {
    try {
      if (value !== undefined) localStorage.setItem(KEPT, value);
      return localStorage.getItem(KEPT) === "1";
    } catch {
      return false; // a browser may refuse: then the choice lasts until a reload
    }
  }

  function useLocal(chosen) {
    local = chosen;
    const named = Intl.DateTimeFormat().resolvedOptions().timeZone;
    toggle.textContent = local ? "Use UTC" : "Use local time";
    zone.textContent = local ? `Times are this browser's: ${named}.` : "All times are UTC.";
    showTimes();
  }

  if (toggle) {
    toggle.hidden = false;
    toggle.addEventListener("click", () => {
      useLocal(!local);
      kept(local ? "1" : "0");
    });
    if (kept()) useLocal(true);
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

  // -- the connection, shown --------------------------------------------------------------
  const live = document.getElementById("live");
  const lost = document.getElementById("lost");
  let lostAt = 0;

  function showLive() {
    lostAt = 0;
    live.className = "live on";
    live.lastElementChild.textContent = "live";
    document.body.classList.remove("stale");
    lost.hidden = true;
  }

  function sayLost() {
    if (lostAt) return;
    lostAt = receivedAt + ahead; // the last sign of life: what the page shows is of that time
    live.className = "live off";
    live.lastElementChild.textContent = "connection lost";
    document.body.classList.add("stale");
    lost.textContent =
      "Connection lost since " + utc(lostAt) + ". The page shows the state of that time; trying again.";
    lost.hidden = false;
  }

  // The node may come back, so the page stays; what it shows is of before.
  function showGone(answer) {
    const error = new DOMParser().parseFromString(answer, "text/html").querySelector("h1");
    document.body.classList.add("stale");
    lost.textContent = error.textContent + ". The page shows what was known before.";
    lost.hidden = false;
  }

  // -- the stream ------------------------------------------------------------------------
  let source = null;
  let receivedAt = Date.now();
  let wait = 500;
  let retry = 0;

  function received(event) {
    receivedAt = Date.now();
    wait = 500;
    const message = JSON.parse(event.data);
    if (message.at) ahead = Date.parse(message.at) - Date.now();
  }

  function open() {
    clearTimeout(retry);
    if (source) source.close();
    receivedAt = Date.now();
    source = new EventSource(document.body.dataset.stream);
    source.addEventListener("hello", (event) => {
      received(event);
      showLive();
      refresh();
    });
    source.addEventListener("changed", (event) => {
      received(event);
      refresh();
    });
    source.addEventListener("beat", received);
    source.onerror = again;
  }

  // Without a log-in a reload gives its form; an EventSource does not know the status of an answer.
  // A second reload would come without the cookie that the first one's answer removes.
  let leaving = false;

  function leaveIfLoggedOut() {
    fetch("/api/v1/access", { cache: "no-store" })
      .then((answer) => {
        if (answer.status !== 401 || leaving) return;
        leaving = true;
        location.reload();
      })
      .catch(() => {}); // the network is away, too
  }

  function again() {
    source.close();
    sayLost();
    leaveIfLoggedOut();
    receivedAt = Date.now(); // the next try begins its own silence
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
        if (!(error instanceof TypeError)) console.error(error); // the stream shows the network's state
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
    if (response.status === 404) return showGone(await response.text());
    if (!response.ok) return;
    if (!lostAt && !lost.hidden) showLive();
    if (response.status === 204) return;
    const answer = await response.text();
    if (response.headers.get("content-type").startsWith("application/json")) {
      const delta = JSON.parse(answer);
      const lines = text.split("\n");
      const whole = (part) => {
        if (typeof part === "string") return part;
        if (part.length === 2) return lines.slice(...part).join("\n");
        const [number, first, last, between] = part;
        const line = lines[number];
        return line.slice(0, first) + between + line.slice(line.length - last);
      };
      text = delta.parts.map(whole).join("\n");
      tag = delta.tag;
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
    showTimes();
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

  // -- the map: every node as a cell, in blocks by a label -----------------------------------
  const figure = document.getElementById("map");
  const canvas = figure && figure.querySelector("canvas");
  const tip = document.getElementById("tip");
  const HEAD = 14; // pixels for the name above a block
  const GAP = 8;
  let fleet = null;
  let pitch = 10;
  let placed = []; // blocks as drawn: the first cell's number, how many, columns, x and y
  let cursor = -1; // the cell that the keyboard has reached

  // The letters come with the page; the names, which seldom change, come by themselves.
  async function drawMap() {
    if (!figure) return;
    const [known, ...rows] = document.getElementById("cells").textContent.trim().split(/\s+/);
    figure.hidden = !rows.length;
    if (figure.hidden) return;
    const states = rows.join("");
    if (!fleet || fleet.known !== known) {
      const response = await fetch(figure.dataset.src, { cache: "no-store" });
      if (!response.ok) return;
      const map = await response.json();
      fleet = { known, names: map.names, blocks: map.blocks };
    }
    if (fleet.names.length !== states.length) fleet.known = ""; // nodes came in between
    fleet.states = states;
    paint();
  }

  // Blocks are side by side, each about twice as wide as it is high; one block takes all.
  function place(width) {
    const total = fleet.names.length;
    pitch = Math.max(7, Math.min(18, Math.floor(Math.sqrt((width * 260) / total))));
    const most = Math.max(1, Math.floor(width / pitch));
    if (fleet.blocks.length < 2) {
      placed = [{ first: 0, count: total, columns: most, x: 0, y: 0, value: null }];
      return Math.ceil(total / most) * pitch;
    }
    placed = [];
    let [first, x, y, high] = [0, 0, 0, 0];
    for (const { value, nodes } of fleet.blocks) {
      const columns = Math.min(most, Math.max(1, Math.ceil(Math.sqrt(nodes * 2))));
      const wide = Math.min(width, Math.max(columns * pitch, 48));
      if (x && x + wide > width) [x, y, high] = [0, y + high + GAP, 0];
      placed.push({ first, count: nodes, columns, x, y: y + HEAD, value: value || "(none)", wide });
      first += nodes;
      high = Math.max(high, HEAD + Math.ceil(nodes / columns) * pitch);
      x += wide + GAP;
    }
    return y + high;
  }

  function paint() {
    if (!fleet || !fleet.states || figure.hidden) return;
    const width = canvas.clientWidth;
    const height = place(width);
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(root);
    const colours = {};
    for (const letter in STATES) {
      colours[letter] = style.getPropertyValue("--" + STATES[letter][0] + "-cell").trim();
    }
    pen.font = "10px " + getComputedStyle(document.body).fontFamily;
    const soft = style.getPropertyValue("--soft").trim();
    for (const block of placed) {
      if (block.value !== null) {
        pen.fillStyle = soft;
        pen.fillText(shortened(pen, block.value, block.wide), block.x, block.y - 4);
      }
      for (let i = 0; i < block.count; i++) {
        const [x, y] = corner(block, i);
        cell(pen, fleet.states[block.first + i], colours, x, y, pitch - (pitch < 8 ? 1 : 2));
      }
    }
    if (cursor >= 0 && document.activeElement === canvas) {
      const block = blockOf(cursor);
      const [x, y] = corner(block, cursor - block.first);
      pen.strokeStyle = style.getPropertyValue("--ink").trim();
      pen.lineWidth = 2;
      pen.strokeRect(x - 1, y - 1, pitch, pitch);
    }
  }

  const corner = (block, i) => [
    block.x + (i % block.columns) * pitch,
    block.y + Math.floor(i / block.columns) * pitch,
  ];
  const blockOf = (index) => placed.find((one) => index < one.first + one.count);

  function shortened(pen, text, wide) {
    if (pen.measureText(text).width <= wide) return text;
    let end = text.length;
    while (end > 1 && pen.measureText(text.slice(0, end) + "\u2026").width > wide) end -= 1;
    return text.slice(0, end) + "\u2026";
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
    if (!fleet) return -1;
    const box = canvas.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    for (const block of placed) {
      const column = Math.floor((left - block.x) / pitch);
      const row = Math.floor((top - block.y) / pitch);
      const i = row * block.columns + column;
      if (column >= 0 && column < block.columns && row >= 0 && i < block.count) return block.first + i;
    }
    return -1;
  }

  function sayCell(index) {
    tip.hidden = !fleet || index < 0 || index >= Math.min(fleet.names.length, fleet.states.length);
    if (tip.hidden) return;
    const block = blockOf(index);
    const [x, y] = corner(block, index - block.first);
    const where = block.value === null ? "" : " in " + block.value;
    tip.textContent = fleet.names[index] + where + ": " + STATES[fleet.states[index]][1];
    const half = tip.offsetWidth / 2;
    tip.style.left = Math.max(half, Math.min(canvas.clientWidth - half, x + pitch / 2)) + "px";
    tip.classList.toggle("below", y < 30);
    tip.style.top = (y < 30 ? y + pitch : y) + "px";
  }

  const openCell = (index) => {
    if (index >= 0) location.href = "/nodes/" + encodeURIComponent(fleet.names[index]);
  };

  function step(key, from) {
    const last = fleet.names.length - 1;
    const columns = from < 0 ? 1 : blockOf(from).columns;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    if (key === "Home") return 0;
    if (key === "End") return last;
    return key in steps ? Math.max(0, Math.min(last, from < 0 ? 0 : from + steps[key])) : -1;
  }

  if (figure) {
    canvas.addEventListener("mousemove", (event) => sayCell(under(event)));
    canvas.addEventListener("mouseleave", () => (tip.hidden = true));
    canvas.addEventListener("click", (event) => openCell(under(event)));
    canvas.addEventListener("keydown", (event) => {
      if (!fleet) return;
      if (event.key === "Enter") openCell(cursor);
      const next = step(event.key, cursor);
      if (next < 0) return;
      event.preventDefault();
      cursor = next;
      paint();
      sayCell(cursor);
    });
    canvas.addEventListener("blur", () => {
      cursor = -1;
      tip.hidden = true;
      paint();
    });
    new ResizeObserver(paint).observe(figure);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  }

  // -- begin ---------------------------------------------------------------------------------
  setInterval(showTimes, 1000);
  showTimes();
  if (!document.body.dataset.stream) return; // a page that shows an error
  document.addEventListener("visibilitychange", () => due && refresh());
  window.addEventListener("pagehide", () => source && source.close());
  window.addEventListener("pageshow", (event) => event.persisted && open());
  setInterval(() => Date.now() - receivedAt > DEAF && again(), 5000);
  open();
})();
