// The live panel of a run. A part makes its nodes once and draws the model's values into them, touching the page only
// where something changed. Text from the run only ever becomes textContent.

const PHASE_MARKS = { done: "✓", stopped: "■", failed: "✗" };
const TABLE_ROWS = 16; // above that, workers are cells of a grid
const STOP_PATIENCE = 1500; // ms until the button takes the second press, should no news of the first come
const SVG = "http://www.w3.org/2000/svg";
const CHART = { height: 112, left: 44, right: 8, top: 8, bottom: 18 };

function node(tag, className, attributes = {}, ...children) {
  const made = document.createElement(tag);
  made.className = className;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function shape(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

function write(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// Keeps one child per item, made by `make` and drawn by `draw`.
function fill(parent, items, make, draw) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, index) => draw(parent.children[index] ?? parent.appendChild(make(index)), item, index));
  parent.hidden = items.length === 0;
}

function number(value) {
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

// Head: what runs, how far it is, what came out so far.

function header(model) {
  const mark = node("span", "tfos-mark", { "aria-hidden": "true" });
  const headline = node("strong", "tfos-headline", { role: "status" });
  const about = node("span", "tfos-muted");
  const elapsed = node("span", "tfos-muted");
  const stop = stopButton(model);
  return {
    root: node("div", "tfos-header", {}, mark, headline, about, node("span", "tfos-aside", {}, elapsed, stop.root)),
    draw() {
      const picture = model.get("picture");
      write(mark, PHASE_MARKS[picture.phase] ?? "");
      write(headline, picture.headline);
      write(about, [picture.name, picture.strategy].filter(Boolean).join(" · "));
      write(elapsed, picture.elapsed);
      stop.draw(picture);
    },
  };
}

// While a cell runs the kernel hears no widget, so the page asks the Jupyter server to interrupt it.
// The kernel of a detached run is free, and is told by a message.
async function interrupt(model) {
  if (model.get("detached")) {
    model.send({ ask: "stop" });
    return true;
  }
  const element = document.getElementById("jupyter-config-data");
  const config = element ? JSON.parse(element.textContent) : {};
  const base = config.baseUrl ?? document.body.dataset.baseUrl;
  const kernel = model.get("kernel_id");
  if (!base || !kernel) return false;
  const xsrf = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/);
  const headers = { "Content-Type": "application/json" };
  if (xsrf) headers["X-XSRFToken"] = decodeURIComponent(xsrf[1]);
  if (config.token) headers.Authorization = `token ${config.token}`;
  const url = new URL(`${base.replace(/\/*$/, "/")}api/kernels/${encodeURIComponent(kernel)}/interrupt`, location.href);
  return fetch(url, { method: "POST", credentials: "same-origin", headers }).then((reply) => reply.ok, () => false);
}

function stopButton(model) {
  const root = node("button", "tfos-stop", { type: "button" });
  let state = "ready"; // ready, asked, again, impossible
  const show = () => {
    const labels = { ready: "Stop", asked: "Stopping …", again: "Stop now", impossible: "Use Kernel ▸ Interrupt" };
    write(root, labels[state]);
    root.title = state === "again" ? "End the workers' processes without waiting for the step" : "";
    root.setAttribute("aria-disabled", String(state === "asked" || state === "impossible"));
  };
  root.addEventListener("click", async () => {
    if (state !== "ready" && state !== "again") return;
    state = "asked";
    show();
    const heard = await interrupt(model);
    if (heard) setTimeout(() => { if (state === "asked") { state = "again"; show(); } }, STOP_PATIENCE);
    else state = "impossible";
    show();
  });
  show();
  return {
    root,
    draw(picture) {
      if (picture.phase === "stopping" && state === "ready") { state = "again"; show(); }
      root.hidden = picture.ended;
    },
  };
}

function overallBar(model) {
  const done = node("div", "tfos-bar-done");
  const range = { role: "progressbar", "aria-label": "All epochs", "aria-valuemin": 0, "aria-valuemax": 100 };
  const bar = node("div", "tfos-bar", range, done);
  const position = node("span", "");
  const right = node("span", "tfos-nowrap");
  const line = node("div", "tfos-position tfos-muted", {}, position, right);
  return {
    root: node("div", "tfos-overall", {}, bar, line),
    draw() {
      const picture = model.get("picture");
      const known = picture.fraction !== null && picture.fraction !== undefined;
      const share = Math.floor(100 * (picture.fraction ?? 0));
      bar.classList.toggle("tfos-bar-unknown", !known && !picture.ended);
      if (known) bar.setAttribute("aria-valuenow", share);
      else bar.removeAttribute("aria-valuenow");
      done.style.transform = `scaleX(${picture.fraction ?? 0})`;
      write(position, picture.position);
      write(right, [picture.remaining, known ? `${share}%` : ""].filter(Boolean).join(" · "));
    },
  };
}

function metrics(model) {
  const root = node("div", "tfos-metrics", { role: "list", "aria-label": "Metrics" });
  const make = () => node("div", "tfos-metric", { role: "listitem" }, node("span", "tfos-muted"), node("strong", "tfos-value"));
  const draw = (pair, metric) => {
    write(pair.firstElementChild, metric.name);
    write(pair.lastElementChild, metric.text);
  };
  return {
    root,
    draw() {
      const picture = model.get("picture");
      const pace = picture.pace ? [{ name: "pace", text: picture.pace }] : [];
      fill(root, [...picture.metrics, ...pace], make, draw);
    },
  };
}

// Tabs, as the ARIA practices have them: one stop of the Tab key, arrows move between.

function tabs(model) {
  const list = node("div", "tfos-tabs", { role: "tablist", "aria-label": "Views of the run" });
  const panes = node("div", "tfos-panes");
  const id = `tfos-${Math.random().toString(36).slice(2, 10)}`;
  const entries = [["Curves", curves], ["Workers", workers], ["Log", log], ["TensorBoard", tensorboard]].map(
    ([name, make], index) => {
      const names = { role: "tab", id: `${id}-tab-${index}`, "aria-controls": `${id}-pane-${index}`, type: "button" };
      const tab = node("button", "tfos-tab", names, name);
      const part = make(model);
      const owner = { role: "tabpanel", id: `${id}-pane-${index}`, "aria-labelledby": names.id, tabindex: 0 };
      const pane = node("div", `tfos-pane tfos-pane-${name.toLowerCase()}`, owner, part.root);
      list.append(tab);
      panes.append(pane);
      tab.addEventListener("click", () => select(index));
      return { name, tab, pane, part };
    },
  );
  let chosen = 0;
  const select = (index, focus = false) => {
    chosen = index;
    entries.forEach(({ tab, pane }, at) => {
      tab.setAttribute("aria-selected", String(at === index));
      tab.tabIndex = at === index ? 0 : -1;
      pane.hidden = at !== index;
    });
    entries[index].part.draw();
    if (focus) entries[index].tab.focus();
  };
  list.addEventListener("keydown", (event) => {
    const open = entries.map((_, index) => index).filter((index) => !entries[index].tab.hidden);
    const at = open.indexOf(chosen);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: open.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    select(open[(to + open.length) % open.length], true);
  });
  select(0);
  return {
    root: node("div", "tfos-body", {}, list, panes),
    draw() {
      const troubled = model.get("workers").filter((worker) => worker[8]).length;
      write(entries[1].tab, troubled ? `Workers · ${troubled} ⚠` : "Workers");
      if (troubled) entries[1].tab.setAttribute("aria-label", `Workers, ${troubled} in trouble`);
      else entries[1].tab.removeAttribute("aria-label");
      entries[3].tab.hidden = !model.get("tensorboard_url");
      entries[chosen].part.draw();
    },
    close: () => entries.forEach(({ part }) => part.close?.()),
  };
}

// Curves

function curves(model) {
  const grid = node("div", "tfos-charts");
  const empty = node("p", "tfos-muted tfos-empty", {}, "Curves begin with the first steps.");
  const phases = node("ul", "tfos-phases", { "aria-label": "Time by phase" });
  const feeds = node("ul", "tfos-feeds", { "aria-label": "DataFrames" });
  const charts = [];
  const cursor = { x: null, kind: "" };
  const redraw = () => charts.forEach((chart) => chart.point());
  const widths = new ResizeObserver(() => charts.forEach((chart) => chart.paint()));
  widths.observe(grid);
  let drawn = null;
  const feedRow = () =>
    node("li", "tfos-feed", {}, node("span", ""), node("span", "tfos-muted"), node("span", "tfos-state"));
  return {
    root: node("div", "", {}, empty, grid, phases, feeds),
    close: () => widths.disconnect(),
    draw() {
      const picture = model.get("picture");
      const data = model.get("charts");
      empty.hidden = data.length > 0;
      while (charts.length > data.length) charts.pop().root.remove();
      data.forEach((chart, index) => {
        if (!charts[index]) grid.append((charts[index] = chartOf(cursor, redraw)).root);
        if (data !== drawn) charts[index].draw(chart);
      });
      drawn = data;
      fill(phases, picture.phases, () => node("li", ""), (item, phase) => write(item, `${phase.name} ${phase.text}`));
      fill(feeds, picture.feeds, feedRow, (item, feed) => {
        write(item.children[0], feed.name);
        write(item.children[1], feed.text);
        write(item.children[2], feed.done ? "fed" : "feeding");
      });
    },
  };
}

// One chart: a slider over its points, so that mouse, keyboard and screen readers get at the values alike.
function chartOf(cursor, redraw) {
  const title = node("span", "tfos-chart-title");
  const readout = node("span", "tfos-readout tfos-muted");
  const svg = shape("svg", { "aria-hidden": "true", height: CHART.height, class: "tfos-chart-svg" });
  const root = node("div", "tfos-chart", { role: "slider", tabindex: 0, "aria-valuemin": 0 });
  root.append(node("div", "tfos-chart-head", {}, title, readout), svg);
  const rule = shape("line", { class: "tfos-rule" });
  const dots = shape("g", {});
  let chart = null;
  let scale = null;
  let xs = [];

  const text = (x) => {
    const at = chart.x === "seconds" ? `${Math.round(x)} s` : `epoch ${number(x)}`;
    const values = new Map(); // the training line and its running values have one name
    for (const line of chart.lines) {
      const index = line.xs.findLastIndex((value) => value <= x);
      if (index < 0 || line.ys[index] === null) continue;
      const known = values.get(line.name);
      if (!known || known.x <= line.xs[index]) values.set(line.name, { x: line.xs[index], y: line.ys[index] });
    }
    return `${at}: ${[...values].map(([name, { y }]) => `${name} ${number(y)}`).join(" · ") || "no value"}`;
  };
  const nearest = (x) => xs.reduce((best, at) => (Math.abs(at - x) < Math.abs(best - x) ? at : best), xs[0]);
  const move = (x) => {
    cursor.x = x;
    cursor.kind = chart.x;
    redraw();
  };

  root.addEventListener("pointermove", (event) => {
    const x = scale.back(event.clientX - svg.getBoundingClientRect().left);
    move(nearest(x));
  });
  root.addEventListener("pointerleave", () => move(null));
  root.addEventListener("blur", () => move(null));
  root.addEventListener("keydown", (event) => {
    const at = cursor.x === null || cursor.kind !== chart.x ? xs.length : xs.indexOf(nearest(cursor.x));
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: xs.length - 1 }[event.key];
    if (event.key === "Escape") move(null);
    else if (to !== undefined) move(xs[Math.min(xs.length - 1, Math.max(0, to))]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  function paint() {
    const width = root.clientWidth;
    if (!chart || !width) return;
    const ys = chart.lines.flatMap((line) => line.ys).filter((y) => y !== null);
    const [low, high] = [Math.min(...ys), Math.max(...ys)];
    const first = chart.x === "seconds" ? xs[0] : 0;
    const last = xs[xs.length - 1];
    const span = last - first || 1;
    const inner = width - CHART.left - CHART.right;
    const bottom = CHART.height - CHART.bottom;
    const y = (value) => CHART.top + (bottom - CHART.top) * (high > low ? (high - value) / (high - low) : 0.5);
    const x = (value) => CHART.left + (inner * (value - first)) / span;
    scale = { x, y, back: (pixel) => first + ((pixel - CHART.left) * span) / inner };
    const parts = [];
    for (const [value, at] of high > low ? [[high, CHART.top], [(high + low) / 2, y((high + low) / 2)], [low, bottom]] : [[low, y(low)]]) {
      parts.push(shape("line", { x1: CHART.left, x2: width - CHART.right, y1: at, y2: at, class: "tfos-grid" }));
      parts.push(shape("text", { x: CHART.left - 6, y: at + 4, "text-anchor": "end" }, number(Number(value.toPrecision(3)))));
    }
    const unit = chart.x === "seconds" ? (value) => `${Math.round(value)} s` : (value) => number(value);
    parts.push(shape("text", { x: CHART.left, y: CHART.height - 3 }, unit(first)));
    parts.push(shape("text", { x: width - CHART.right, y: CHART.height - 3, "text-anchor": "end" }, unit(last)));
    for (const line of chart.lines) {
      let pen = "M";
      let path = "";
      line.xs.forEach((at, index) => {
        const value = line.ys[index];
        if (value === null) pen = "M";
        else {
          path += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
          pen = "L";
        }
      });
      if (path && !path.includes("L")) path += "h0.1";
      parts.push(shape("path", { d: path, class: `tfos-line tfos-${line.style}` }));
    }
    svg.setAttribute("width", width);
    svg.replaceChildren(...parts, rule, dots);
    point();
  }

  function point() {
    const shown = cursor.x !== null && chart && scale && cursor.kind === chart.x;
    const x = shown ? nearest(cursor.x) : null;
    rule.style.display = shown ? "" : "none";
    root.classList.toggle("tfos-pointed", Boolean(shown));
    if (shown) {
      for (const [name, value] of [["x1", scale.x(x)], ["x2", scale.x(x)], ["y1", CHART.top], ["y2", CHART.height - CHART.bottom]])
        rule.setAttribute(name, value);
    }
    const value = chart && xs.length ? text(x ?? xs[xs.length - 1]) : "";
    write(readout, shown ? value : chart && chart.lines.some((line) => line.style === "dashed") ? "dashed: validation" : "");
    if (root.getAttribute("aria-valuetext") !== value) root.setAttribute("aria-valuetext", value);
    root.setAttribute("aria-valuenow", x === null ? xs.length - 1 : xs.indexOf(x));
  }

  return {
    root,
    point,
    paint,
    draw(next) {
      chart = next;
      xs = [...new Set(chart.lines.flatMap((line) => line.xs))].sort((a, b) => a - b);
      write(title, chart.name);
      root.setAttribute("aria-label", `${chart.name} by ${chart.x === "seconds" ? "time" : "epoch"}`);
      root.setAttribute("aria-valuemax", xs.length - 1);
      paint();
    },
  };
}

// Workers: rows of a table while they are few, cells of a grid when they are many.
// A worker is [where, state, step, fraction, pace, data, peers, memory, trouble]; its index is its rank.

const COLUMNS = ["Worker", "Where", "State", "Step", "Pace", "Waits: data", "Waits: others", "Memory"];

function workers(model) {
  const head = node("tr", "", {}, ...COLUMNS.map((name) => node("th", "", { scope: "col" }, name)));
  const body = node("tbody", "");
  const table = node("table", "tfos-workers", { "aria-label": "Workers" }, node("thead", "", {}, head), body);
  const grid = node("div", "tfos-cells", { role: "listbox", "aria-label": "Workers", tabindex: 0 });
  const detail = node("p", "tfos-detail", { role: "status" });
  const summary = node("p", "tfos-muted tfos-summary");
  const id = `tfos-${Math.random().toString(36).slice(2, 10)}`;
  let chosen = 0;

  const row = () => {
    const made = node("tr", "", {}, node("th", "", { scope: "row" }));
    for (let index = 1; index < COLUMNS.length; index += 1) made.append(node("td", index === 1 ? "tfos-where" : ""));
    return made;
  };
  const drawRow = (item, worker, rank) => {
    const [where, state, step, , pace, data, peers, memory, trouble] = worker;
    const texts = [`${rank}`, where, stateText(state, trouble), step, pace, data, peers, memory];
    texts.forEach((text, index) => write(item.children[index], text));
    item.dataset.trouble = trouble;
    item.children[1].title = where;
  };
  const cell = (rank) => node("div", "tfos-cell", { role: "option", id: `${id}-${rank}` }, node("i", ""), node("b", ""));
  const drawCell = (item, worker, rank) => {
    const [, state, , fraction, , , , , trouble] = worker;
    const label = `worker ${rank}, ${stateText(state, trouble)}`;
    if (item.getAttribute("aria-label") !== label) item.setAttribute("aria-label", label);
    if (item.dataset.trouble !== trouble) item.dataset.trouble = trouble;
    const sign = { "": "", lost: " ✗", failed: " ✗" }[trouble] ?? " ⚠";
    write(item.lastElementChild, `${rank}${sign}`);
    const transform = `scaleX(${fraction})`;
    if (item.firstElementChild.style.transform !== transform) item.firstElementChild.style.transform = transform;
  };
  const describe = () => {
    const worker = model.get("workers")[chosen];
    if (!worker) return;
    const [where, state, step, , pace, data, peers, memory, trouble] = worker;
    const waits = [data && `waits ${data} for data`, peers && `${peers} for others`];
    const parts = [where, stateText(state, trouble), step && `step ${step}`, pace, ...waits, memory];
    write(detail, `Worker ${chosen}: ${parts.filter(Boolean).join(" · ")}`);
  };
  const choose = (rank) => {
    grid.children[chosen]?.setAttribute("aria-selected", "false");
    chosen = rank;
    grid.children[chosen]?.setAttribute("aria-selected", "true");
    grid.setAttribute("aria-activedescendant", `${id}-${rank}`);
    grid.children[chosen]?.scrollIntoView({ block: "nearest" });
    describe();
  };
  grid.addEventListener("click", (event) => {
    const found = event.target.closest(".tfos-cell");
    if (found) choose([...grid.children].indexOf(found));
  });
  grid.addEventListener("keydown", (event) => {
    const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
    const last = grid.children.length - 1;
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -last, End: last, Enter: 0, " ": 0 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    event.stopPropagation();
    choose(Math.min(last, Math.max(0, chosen + moves[event.key])));
  });
  return {
    root: node("div", "tfos-scroll", {}, summary, table, grid, detail),
    draw() {
      const list = model.get("workers");
      const many = list.length > TABLE_ROWS;
      table.hidden = many;
      fill(body, many ? [] : list, row, drawRow);
      fill(grid, many ? list : [], cell, drawCell);
      detail.hidden = !many;
      summary.hidden = !many;
      if (many) {
        const troubled = list.map((worker, rank) => [rank, worker[8]]).filter(([, trouble]) => trouble);
        const named = troubled.slice(0, 6).map(([rank, trouble]) => `${rank} ${trouble}`).join(", ");
        const more = troubled.length > 6 ? ` and ${troubled.length - 6} more` : "";
        write(summary, `${list.length} workers${troubled.length ? ` · in trouble: ${named}${more}` : ", none in trouble"}`);
        if (!grid.hasAttribute("aria-activedescendant")) choose(0);
        describe();
      }
    },
  };
}

function stateText(state, trouble) {
  return trouble && trouble !== state ? `${state} · ⚠ ${trouble}` : trouble ? `⚠ ${state}` : state;
}

// Log: the last lines of every worker, [rank, text] in the order in which they came.

function log(model) {
  const select = node("select", "tfos-select", { "aria-label": "Show lines of" }, node("option", "", { value: "" }, "All workers"));
  const lines = node("pre", "tfos-log", { tabindex: 0, role: "log", "aria-live": "off", "aria-label": "Last lines" });
  let drawn = null;
  let filter = "";
  const draw = () => {
    const entries = model.get("lines");
    if (entries === drawn) return;
    drawn = entries;
    const count = model.get("workers").length;
    while (select.options.length <= count) {
      const rank = select.options.length - 1;
      select.append(node("option", "", { value: rank }, `Worker ${rank}`));
    }
    const follows = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 24;
    const kept = entries.filter(([rank]) => filter === "" || rank === Number(filter));
    const prefix = (rank) => (filter === "" && count > 1 ? `[${rank}] ` : "");
    write(lines, kept.map(([rank, text]) => prefix(rank) + text).join("\n") || "No lines yet.");
    if (follows) lines.scrollTop = lines.scrollHeight;
  };
  select.addEventListener("change", () => {
    filter = select.value;
    drawn = null;
    draw();
  });
  return { root: node("div", "", {}, select, lines), draw };
}

// TensorBoard: through the Jupyter server where its proxy answers, else straight.

function tensorboard(model) {
  const note = node("p", "tfos-muted", {}, "Opening TensorBoard …");
  const frame = node("iframe", "tfos-board", { title: "TensorBoard", hidden: "" });
  let opened = "";
  const answers = (url, options) => fetch(url, options).then((reply) => reply.ok || reply.type === "opaque", () => false);
  const open = async (url) => {
    const element = document.getElementById("jupyter-config-data");
    const base = (element && JSON.parse(element.textContent).baseUrl) ?? document.body.dataset.baseUrl;
    const proxied = base && new URL(`${base.replace(/\/*$/, "/")}proxy/${new URL(url).port}/`, location.href).href;
    if (proxied && (await answers(`${proxied}data/environment`, { credentials: "same-origin" }))) frame.src = proxied;
    else if (await answers(url, { mode: "no-cors" })) frame.src = url;
    else return write(note, `This page cannot reach TensorBoard at ${url}; on a remote machine, install jupyter-server-proxy.`);
    frame.hidden = false;
    note.hidden = true;
  };
  return {
    root: node("div", "", {}, note, frame),
    draw() {
      const url = model.get("tensorboard_url");
      if (!url || url === opened) return;
      opened = url;
      open(url);
    },
  };
}

function messages(model) {
  const error = node("p", "tfos-error", { role: "alert" });
  const notices = node("ul", "tfos-notices", { "aria-label": "Notices" });
  return {
    root: node("div", "tfos-messages", {}, error, notices),
    draw() {
      const picture = model.get("picture");
      write(error, picture.error);
      error.hidden = !picture.error;
      fill(notices, picture.notices, () => node("li", ""), write);
    },
  };
}

function render({ model, el }) {
  const panel = node("section", "tfos-panel", { "aria-label": "Training run" });
  const parts = [header, overallBar, metrics, tabs, messages].map((make) => make(model));
  panel.append(...parts.map((part) => part.root));
  const draw = () => {
    panel.dataset.phase = model.get("picture").phase;
    for (const part of parts) part.draw();
  };
  let asked = 0; // several values of one message are drawn once
  const soon = () => {
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      draw();
    });
  };
  el.append(panel);
  draw();
  const names = ["picture", "workers", "charts", "lines", "tensorboard_url"].map((name) => `change:${name}`);
  names.forEach((name) => model.on(name, soon));
  return () => {
    cancelAnimationFrame(asked);
    names.forEach((name) => model.off(name, soon));
    parts.forEach((part) => part.close?.());
  };
}

export default { render };
