// The live panel. A part makes its nodes once and draws a picture into them; the panel is the list of its parts, so a
// new one (curves, logs, a Stop button) is one more entry. Text from the run only ever becomes textContent.

const PHASE_MARKS = { done: "✓", stopped: "■", failed: "✗" };

function node(tag, className, attributes = {}) {
  const made = document.createElement(tag);
  made.className = className;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Touches the page only where something changed: no flicker, and screen readers hear changes alone.
function write(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// Keeps one child per item, made by `make` and drawn by `draw`.
function fill(parent, items, make, draw) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, index) => {
    const child = parent.children[index] ?? parent.appendChild(make());
    draw(child, item);
  });
  parent.hidden = items.length === 0;
}

function header() {
  const root = node("div", "tfos-header");
  const mark = root.appendChild(node("span", "tfos-mark", { "aria-hidden": "true" }));
  const headline = root.appendChild(node("strong", "tfos-headline", { role: "status" }));
  const about = root.appendChild(node("span", "tfos-muted"));
  const elapsed = root.appendChild(node("span", "tfos-elapsed tfos-muted"));
  return {
    root,
    draw(picture) {
      write(mark, PHASE_MARKS[picture.phase] ?? "");
      write(headline, picture.headline);
      write(about, [picture.name, picture.strategy].filter(Boolean).join(" · "));
      write(elapsed, picture.elapsed);
    },
  };
}

function overallBar() {
  const root = node("div", "tfos-overall");
  const bar = root.appendChild(
    node("div", "tfos-bar", { role: "progressbar", "aria-label": "All epochs", "aria-valuemin": 0, "aria-valuemax": 100 }),
  );
  const done = bar.appendChild(node("div", "tfos-bar-done"));
  const line = root.appendChild(node("div", "tfos-position tfos-muted"));
  const position = line.appendChild(node("span", ""));
  const percent = line.appendChild(node("span", ""));
  return {
    root,
    draw(picture) {
      const known = picture.fraction !== null && picture.fraction !== undefined;
      const share = Math.floor(100 * (picture.fraction ?? 0));
      bar.classList.toggle("tfos-bar-unknown", !known && !picture.ended);
      if (known) bar.setAttribute("aria-valuenow", share);
      else bar.removeAttribute("aria-valuenow");
      done.style.transform = `scaleX(${picture.fraction ?? 0})`;
      write(position, picture.position);
      write(percent, known ? `${share}%` : "");
    },
  };
}

function metrics() {
  const root = node("div", "tfos-metrics");
  const values = root.appendChild(node("div", "tfos-values", { role: "list", "aria-label": "Metrics" }));
  const curve = root.appendChild(node("div", "tfos-curve"));
  let drawn = "";
  const make = () => {
    const pair = node("div", "tfos-metric", { role: "listitem" });
    pair.append(node("span", "tfos-label tfos-muted"), node("strong", "tfos-value"));
    return pair;
  };
  const draw = (pair, metric) => {
    write(pair.firstElementChild, metric.name);
    write(pair.lastElementChild, metric.text);
    pair.dataset.line = metric.line ?? "";
  };
  return {
    root,
    draw(picture) {
      const pace = picture.pace ? [{ name: "pace", text: picture.pace }] : [];
      fill(values, [...picture.metrics, ...pace], make, draw);
      if (picture.curve !== drawn) curve.innerHTML = drawn = picture.curve; // drawn by the kernel from numbers alone
      root.hidden = values.hidden && !drawn;
    },
  };
}

function feeds() {
  const root = node("ul", "tfos-feeds", { "aria-label": "DataFrames" });
  const make = () => {
    const item = node("li", "tfos-row");
    item.append(node("span", "tfos-name"), node("span", "tfos-where tfos-muted"), node("span", "tfos-state"));
    return item;
  };
  const draw = (item, feed) => {
    const [name, text, state] = item.children;
    write(name, feed.name);
    write(text, feed.text);
    write(state, feed.done ? "fed" : "feeding");
    item.dataset.state = feed.done ? "done" : "feeding";
  };
  return { root, draw: (picture) => fill(root, picture.feeds, make, draw) };
}

function workers() {
  const root = node("ul", "tfos-workers", { "aria-label": "Workers", tabindex: 0 });
  const make = () => {
    const item = node("li", "tfos-row");
    const bar = node("span", "tfos-bar tfos-small", { "aria-hidden": "true" });
    bar.append(node("span", "tfos-bar-done"));
    item.append(node("span", "tfos-name"), node("span", "tfos-where tfos-muted"));
    item.append(node("span", "tfos-state"), bar, node("span", "tfos-pace"));
    return item;
  };
  const draw = (item, worker) => {
    const [name, where, state, bar, pace] = item.children;
    write(name, `worker ${worker.rank}`);
    write(where, worker.where);
    write(state, worker.state);
    write(pace, worker.pace);
    bar.firstElementChild.style.transform = `scaleX(${worker.fraction})`;
    item.dataset.state = worker.state;
  };
  return { root, draw: (picture) => fill(root, picture.workers, make, draw) };
}

function messages() {
  const root = node("div", "tfos-messages");
  const error = root.appendChild(node("p", "tfos-error", { role: "alert" }));
  const notices = root.appendChild(node("ul", "tfos-notices", { "aria-label": "Notices" }));
  return {
    root,
    draw(picture) {
      write(error, picture.error);
      error.hidden = !picture.error;
      fill(notices, picture.notices, () => node("li", ""), write);
    },
  };
}

const PARTS = [header, overallBar, metrics, feeds, workers, messages];

function render({ model, el }) {
  const panel = node("section", "tfos-panel", { "aria-label": "Training run" });
  const parts = PARTS.map((make) => make());
  panel.append(...parts.map((part) => part.root));
  const draw = () => {
    const picture = model.get("picture");
    panel.dataset.phase = picture.phase;
    for (const part of parts) part.draw(picture);
  };
  draw();
  model.on("change:picture", draw);
  el.append(panel);
  return () => model.off("change:picture", draw);
}

export default { render };
