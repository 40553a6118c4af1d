// A sweep: its trials as rows, their curves over one another, parallel coordinates, and which parameters matter.

const ROW = 24; // pixels of a row: of a thousand trials those in sight are drawn
const ENOUGH = 5; // trials that must have ended well for parallel coordinates
const SOON = 1000; // ms between two drawings of many curves
const MANY = 100;
const LONG = 24; // characters of a value that are shown
const LETTER = 6; // pixels of a character on an axis
const CONSTANTS = ["None", "True", "False"];

function sweepOf(data, own) {
  const look = { chosen: null }; // the number of the trial that is chosen
  const choose = (number) => {
    look.chosen = number;
    draw(true);
  };
  const parts = [trialTable(data, look, choose), overlaid(data, look), parallel(data, look), importanceBars(data)];
  let shown = null;
  let due = 0;
  const trials = () => {
    const rows = (data.get("blocks") ?? []).flatMap((name) => data.get(name) ?? []).filter((row) => row.length);
    const known = rows.map(([number, params, state, epoch, value, curve, error]) => ({ number, params, state, epoch, value, curve, error }));
    return known.sort((a, b) => (a.number < 0 ? Infinity : a.number) - (b.number < 0 ? Infinity : b.number) || 0);
  };
  const draw = (atOnce = false) => {
    const blocks = (data.get("blocks") ?? []).map((name) => data.get(name));
    const same = shown !== null && blocks.every((block, index) => block === shown[index]);
    if (same && !atOnce) return;
    const known = trials();
    const best = bestOf(known, data);
    parts[0].draw(known, best);
    shown = blocks;
    if (!atOnce && known.length > MANY && performance.now() < due && !data.get("picture").ended) return;
    due = performance.now() + SOON;
    parts.slice(1).forEach((part) => part.draw(known, best));
  };
  const widths = new ResizeObserver(() => draw(true));
  const pictures = node("div", "tfos-charts", {}, ...parts.slice(1).map((part) => part.root));
  widths.observe(pictures);
  return {
    root: node("div", "tfos-sweep", {}, parts[0].root, pictures),
    draw: () => {
      draw();
      parts[3].draw();
    },
    close: () => widths.disconnect(),
  };
}

function bestOf(trials, data) {
  const ended = trials.filter((trial) => trial.state === "complete" && trial.value !== null);
  const better = data.get("maximize") ? (a, b) => a.value > b.value : (a, b) => a.value < b.value;
  return ended.reduce((best, trial) => (best === null || better(trial, best) ? trial : best), null);
}

// As the card writes a value that was chosen; a text that reads as a constant is in quotes.
function whole(value) {
  if (value === undefined) return "";
  if (typeof value === "number") return number(value);
  if (typeof value === "string") return CONSTANTS.includes(value) ? `'${value}'` : value.replace(/\s+/g, " ");
  return { null: "None", true: "True", false: "False" }[String(value)];
}

const short = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text);
const written = (value) => short(whole(value), LONG);

// The rows are the options of a listbox's kind of table: one stop of the Tab key, arrows choose.
function trialTable(data, look, choose) {
  const head = node("tr", "");
  const body = node("tbody", "");
  const above = node("tr", "", { "aria-hidden": "true" }, node("td", ""));
  const below = node("tr", "", { "aria-hidden": "true" }, node("td", ""));
  const table = node("table", "tfos-workers tfos-trials", { "aria-label": "Trials" }, node("thead", "", {}, head), body);
  const box = node("div", "tfos-rows", { tabindex: 0, role: "group", "aria-label": "Trials: arrows choose one" }, table);
  const said = node("pre", "tfos-log tfos-said", { role: "status" });
  const empty = node("p", "tfos-muted tfos-empty", {}, "Trials are shown as soon as they begin.");
  let known = [];
  let best = null;
  let names = [];
  const made = new Map();
  const row = () => {
    const item = node("tr", "");
    item.addEventListener("click", () => Number(item.dataset.number) >= 0 && choose(Number(item.dataset.number)));
    return item;
  };
  const cells = (item, trial) => {
    const texts = [
      `${trial === best ? "★ " : ""}${trial.number < 0 ? "" : trial.number}`,
      ...names.map((name) => written(trial.params[name])),
      trial.state,
      trial.epoch,
      trial.value === null ? "" : number(trial.value),
    ];
    while (item.children.length > texts.length + 1) item.lastElementChild.remove();
    texts.forEach((text, at) => write(item.children[at] ?? item.appendChild(node("td", "")), text));
    names.forEach((name, at) => (item.children[at + 1].title = whole(trial.params[name])));
    const last = item.children[texts.length] ?? item.appendChild(node("td", "tfos-spark"));
    if (last.dataset.curve !== String(trial.curve)) {
      last.dataset.curve = String(trial.curve);
      last.replaceChildren(spark(trial.curve));
    }
    item.dataset.number = trial.number;
    item.dataset.state = trial.state;
    item.setAttribute("aria-selected", String(trial.number === look.chosen));
  };
  const paint = () => {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 4);
    const count = Math.ceil((box.clientHeight || 264) / ROW) + 8;
    const sight = known.slice(first, first + count);
    while (made.size > sight.length) {
      const at = made.size - 1;
      made.get(at).remove();
      made.delete(at);
    }
    sight.forEach((trial, at) => {
      if (!made.has(at)) made.set(at, row());
      cells(made.get(at), trial);
    });
    above.firstElementChild.style.height = `${first * ROW}px`;
    below.firstElementChild.style.height = `${Math.max(0, known.length - first - sight.length) * ROW}px`;
    const wanted = [above, ...made.values(), below];
    if (wanted.length !== body.children.length || wanted.some((item, at) => body.children[at] !== item)) body.replaceChildren(...wanted);
  };
  box.addEventListener("scroll", paint);
  box.addEventListener("keydown", (event) => {
    const at = known.findIndex((trial) => trial.number === look.chosen);
    const to = { ArrowDown: at + 1, ArrowUp: at < 0 ? known.length - 1 : at - 1, Home: 0, End: known.length - 1 }[event.key];
    if (event.key === "Escape") choose(null);
    else if (to !== undefined && known.length) {
      const index = Math.min(known.length - 1, Math.max(0, to));
      choose(known[index].number);
      const top = index * ROW;
      if (top < box.scrollTop || top + 2 * ROW > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight / 2;
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return {
    root: node("div", "", {}, empty, box, said),
    draw(trials, top) {
      [known, best] = [top ? [top, ...trials.filter((trial) => trial !== top)] : trials, top];
      names = [...new Set(known.flatMap((trial) => Object.keys(trial.params)))];
      fill(head, ["trial", ...names, "state", "epoch", data.get("metric"), ""], () => node("th", "", { scope: "col" }), (item, name) => {
        write(item, short(name, LONG));
        item.title = name;
      });
      empty.hidden = known.length > 0;
      box.hidden = known.length === 0;
      paint();
      const chosen = known.find((trial) => trial.number === look.chosen);
      write(said, chosen?.error ?? "");
      said.hidden = !said.textContent;
    },
  };
}

const SPARK = { width: 64, height: 16 };

function spark(curve) {
  const svg = shape("svg", { "aria-hidden": "true", width: SPARK.width, height: SPARK.height });
  const ys = curve.map(([, y]) => y).filter((y) => y !== null);
  if (ys.length > 1) {
    const scale = scaleOf(curve.map(([x]) => x), ys, { left: 1, right: 1, top: 2, bottom: 2, ...SPARK });
    svg.append(shape("path", { d: pathOf(curve, scale), class: "tfos-line" }));
  }
  return svg;
}

function scaleOf(xs, ys, { width, height, left, right, top, bottom }) {
  const [low, high, first, last] = [ys, xs].flatMap((all) => [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))]);
  return {
    low, high, first, last,
    x: (value) => left + ((width - left - right) * (value - first)) / (last - first || 1),
    y: (value) => top + (height - top - bottom) * (high > low ? (high - value) / (high - low) : 0.5),
  };
}

// A drawing with a title and, for those who do not see it, words.
function drawing(title, height) {
  const svg = shape("svg", { role: "img", height, class: "tfos-chart-svg" });
  const words = node("span", "tfos-readout tfos-muted");
  const root = node("div", "tfos-chart", {}, node("div", "tfos-chart-head", {}, node("span", "tfos-chart-title", {}, title), words), svg);
  return {
    root,
    draw(text, paint) {
      const width = root.clientWidth;
      write(words, text);
      svg.setAttribute("aria-label", `${title}: ${text}`);
      if (!width) return;
      svg.setAttribute("width", width);
      svg.replaceChildren(...paint(width));
    },
  };
}

const lineOf = (d, kind) => shape("path", { d, class: `tfos-line ${kind}` });

function overlaid(data, look) {
  const shown = drawing("Curves", 160);
  return {
    root: shown.root,
    draw(trials, best) {
      const drawn = trials.filter((trial) => trial.curve.some(([, y]) => y !== null));
      shown.root.hidden = drawn.length === 0;
      if (!drawn.length) return;
      const chosen = drawn.find((trial) => trial.number === look.chosen) ?? null;
      const strong = chosen ?? best;
      const text = strong ? `${data.get("metric")} of ${chosen ? "trial" : "the best trial,"} ${strong.number}` : data.get("metric");
      shown.draw(text, (width) => {
        const points = drawn.flatMap((trial) => trial.curve);
        const frame = { ...CHART, width, height: 160 };
        const scale = scaleOf(points.map(([x]) => x), points.map(([, y]) => y).filter((y) => y !== null), frame);
        const parts = [[scale.high, "high"], [scale.low, "low"]].flatMap(([value]) => [
          shape("line", { x1: CHART.left, x2: width - CHART.right, y1: scale.y(value), y2: scale.y(value), class: "tfos-grid" }),
          shape("text", { x: CHART.left - 6, y: scale.y(value) + 4, "text-anchor": "end" }, number(Number(value.toPrecision(3)))),
        ]);
        parts.push(shape("text", { x: CHART.left, y: 157 }, `epoch ${scale.first}`));
        parts.push(shape("text", { x: width - CHART.right, y: 157, "text-anchor": "end" }, `epoch ${scale.last}`));
        parts.push(lineOf(drawn.map((trial) => pathOf(trial.curve, scale)).join(""), "tfos-quiet"));
        if (strong) parts.push(lineOf(pathOf(strong.curve, scale), "tfos-strong"));
        const [only, ...more] = strong ? strong.curve.filter(([, y]) => y !== null) : [];
        if (only && !more.length) parts.push(shape("circle", { cx: scale.x(only[0]), cy: scale.y(only[1]), r: 3, class: "tfos-dot" }));
        return parts;
      });
    },
  };
}

// One axis for each parameter and one for the metric; a trial is a line across them.
function parallel(data, look) {
  const shown = drawing("Parameters", 174);
  return {
    root: shown.root,
    draw(trials, best) {
      const ended = trials.filter((trial) => trial.value !== null && ["complete", "pruned"].includes(trial.state));
      const names = [...new Set(ended.flatMap((trial) => Object.keys(trial.params)))];
      shown.root.hidden = ended.length < ENOUGH || names.length === 0;
      if (shown.root.hidden) return;
      const metric = data.get("metric");
      const values = (trial) => [...names.map((name) => trial.params[name]), trial.value];
      const axes = [...names, metric].map((name, at) => axisOf(name, ended.map((trial) => values(trial)[at])));
      const strong = ended.find((trial) => trial.number === look.chosen) ?? best;
      shown.draw(`${ended.length} trials by what was chosen for them`, (width) => {
        const [left, right, top, bottom] = [18, 18, 18, 142];
        const x = (at) => left + ((width - left - right) * at) / (axes.length - 1);
        // Dashed where it passes the axis of a parameter that the trial was not asked for.
        const path = (trial, dashed) => {
          const points = values(trial).flatMap((value, at) => (value === undefined ? [] : [[at, `${x(at).toFixed(1)} ${(bottom - (bottom - top) * axes[at].place(value)).toFixed(1)}`]]));
          const pairs = points.slice(1).map((point, at) => [points[at], point]).filter(([[from], [to]]) => to - from > 1 === dashed);
          return pairs.map(([[, from], [, to]]) => `M${from}L${to}`).join("");
        };
        const room = Math.floor(width / axes.length / LETTER) - 1;
        const parts = axes.flatMap(({ name, low, high }, at) => {
          const anchor = at === 0 ? "start" : at === axes.length - 1 ? "end" : "middle";
          const where = at === 0 ? 0 : at === axes.length - 1 ? width : x(at);
          return [
            shape("line", { x1: x(at), x2: x(at), y1: top, y2: bottom, class: "tfos-grid" }),
            shape("text", { x: where, y: 12, "text-anchor": anchor }, short(high, room)),
            shape("text", { x: where, y: 157, "text-anchor": anchor }, short(low, room)),
            shape("text", { x: where, y: 171, "text-anchor": anchor }, short(name, room)),
          ];
        });
        for (const [kind, drawn] of [["tfos-quiet", ended], ["tfos-strong", strong ? [strong] : []]]) {
          for (const dashed of [false, true]) parts.push(lineOf(drawn.map((trial) => path(trial, dashed)).join(""), dashed ? `${kind} tfos-dashed` : kind));
        }
        return parts;
      });
    },
  };
}

// Numbers by size, and by their logarithms where they span two powers of ten; all else in the order of its names.
function axisOf(name, all) {
  const values = all.filter((value) => value !== undefined);
  if (values.every((value) => typeof value === "number")) {
    const [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
    const size = low > 0 && high / low >= 100 ? Math.log : (value) => value;
    const span = size(high) - size(low) || 1;
    return { name, low: number(Number(low.toPrecision(3))), high: number(Number(high.toPrecision(3))), place: (value) => (size(value) - size(low)) / span };
  }
  const names = [...new Set(values.map(whole))].sort();
  return { name, low: names[0], high: names[names.length - 1], place: (value) => names.indexOf(whole(value)) / Math.max(1, names.length - 1) };
}

function importanceBars(data) {
  const list = node("ul", "tfos-importance", { "aria-label": "Importance of the parameters" });
  const root = node("div", "tfos-chart", {}, node("div", "tfos-chart-head", {}, node("span", "tfos-chart-title", {}, "Importance")), list);
  const make = () => node("li", "", {}, node("span", ""), node("span", "tfos-bar", {}, node("span", "tfos-bar-done")), node("span", "tfos-muted"));
  return {
    root,
    draw() {
      const shares = data.get("importance") ?? [];
      root.hidden = shares.length === 0;
      fill(list, shares, make, (item, [name, share]) => {
        write(item.children[0], short(name, LONG));
        item.children[1].firstElementChild.style.transform = `scaleX(${share})`;
        write(item.children[2], `${Math.round(100 * share)}%`);
      });
    },
  };
}
