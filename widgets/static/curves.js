// Curves

// Some of the charts, smoothed by a moving average that forgets: `smooth`, 0 to 1, is what a point keeps of the last.
// `told` are the values as they are.
function chosenCharts(charts, own) {
  const shown = own.get("shown", []);
  const keep = own.get("smooth", 0);
  const kept = charts.filter((chart) => (shown.length ? shown.includes(chart.name) : chart.usual));
  if (!keep) return kept;
  const smooth = (line) => ({ ...line, ys: smoothed(line.ys, keep), told: line.ys });
  return kept.map((chart) => ({ ...chart, smoothed: true, lines: chart.lines.map(smooth) }));
}

// What the curves of a run are of, and which there are besides.
function aboutCurves(picture, own) {
  return [picture.fit, own.get("shown", []).length ? "" : picture.more].filter(Boolean);
}

function smoothed(ys, keep) {
  let [sum, weight] = [0, 0]; // of the values so far, each counting less the older it is
  return ys.map((y) => {
    if (y === null) return y;
    [sum, weight] = [keep * sum + y, keep * weight + 1];
    return sum / weight;
  });
}

function curves(data, own) {
  const grid = node("div", "tfos-charts");
  const empty = node("p", "tfos-muted tfos-empty", {}, "");
  const about = node("div", "tfos-about");
  const nothing = () => {
    const shown = own.get("shown", []);
    const { ended, metrics, position } = data.get("picture");
    if (!data.get("run_id")) return "Metrics are shown as soon as there is a run.";
    if (!ended) return "Curves begin with the first steps.";
    if (metrics.some((metric) => !shown.length || shown.includes(metric.name)))
      return position ? "One epoch makes no curve." : "No epoch was finished.";
    return shown.length ? `No metric is called ${shown.join(" or ")}.` : "No metric was reported.";
  };
  const charts = [];
  const cursor = { x: null, kind: "", logarithmic: () => own.get("log_y", false) };
  const redraw = () => charts.forEach((chart) => chart.point());
  const point = () => {
    redraw();
    if (cursor.kind === "epoch" || cursor.x === null) own.tell("cursor", cursor.x);
  };
  const widths = new ResizeObserver(() => charts.forEach((chart) => chart.paint()));
  widths.observe(grid);
  let drawn = null;
  own.hear(["shown", "smooth", "log_y"], () => { drawn = null; });
  own.hear(["cursor"], () => {
    Object.assign(cursor, { x: own.get("cursor", null), kind: "epoch" });
    redraw();
  });
  return {
    root: node("div", "tfos-curves", {}, empty, grid, about),
    close: () => widths.disconnect(),
    draw() {
      const all = data.get("charts");
      if (!charts.length) write(empty, nothing());
      fill(about, charts.length ? aboutCurves(data.get("picture"), own) : [], () => node("p", "tfos-muted"), write);
      if (all === drawn) return;
      drawn = all;
      const list = chosenCharts(all, own);
      empty.hidden = list.length > 0;
      write(empty, nothing());
      while (charts.length > list.length) charts.pop().root.remove();
      list.forEach((chart, index) => {
        if (!charts[index]) grid.append((charts[index] = chartOf(cursor, point)).root);
        charts[index].draw(chart);
      });
    },
  };
}

function timesAndFeeds(data, own) {
  const phases = node("ul", "tfos-phases", { "aria-label": "Time by phase" });
  const feeds = feedTable(data);
  return {
    root: node("div", "", {}, phases, feeds.root),
    draw() {
      const parts = data.get("picture").phases;
      fill(phases, parts, () => node("li", ""), (item, phase) => write(item, `${phase.name} ${phase.text}`));
      feeds.draw();
    },
  };
}

// With `release`, which makes a button for a name, each DataFrame has one.
function feedTable(data, release) {
  const feeds = node("ul", "tfos-feeds", { "aria-label": "DataFrames" });
  const make = () =>
    node("li", "tfos-feed", {}, node("span", ""), node("span", "tfos-muted"), node("span", "tfos-state"));
  return {
    root: feeds,
    draw() {
      fill(feeds, data.get("picture").feeds, make, (item, feed) => {
        write(item.children[0], feed.name);
        write(item.children[1], feed.text);
        write(item.children[2], feed.state);
        release?.(item, feed);
      });
    },
  };
}

// Lines through points [x, y], lifted over those without a y; a point alone is a dot.
function pathOf(points, scale) {
  const has = (index) => (points[index]?.[1] ?? null) !== null;
  const step = ([x, y], index) => {
    if (y === null) return "";
    const dot = has(index - 1) || has(index + 1) ? "" : "h0.1";
    return `${has(index - 1) ? "L" : "M"}${scale.x(x).toFixed(1)} ${scale.y(y).toFixed(1)}${dot}`;
  };
  return points.map(step).join("");
}

// One chart: a slider over its points, so that mouse, keyboard and screen readers get at the values alike. Charts with
// one `cursor` point at the same place; `point` is called when it has moved.
function chartOf(cursor, moved) {
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
    const at = chart.x === "seconds" ? `${Math.round(x)} s` : `epoch ${number(Math.round(x * 10) / 10)}`;
    const values = new Map(); // the training line and its running values have one name
    for (const line of chart.lines) {
      const index = line.xs.findLastIndex((value) => value <= x);
      const y = (line.told ?? line.ys)[index] ?? null; // none before its first point, or where it is not finite
      if (y === null) continue;
      const known = values.get(line.name);
      if (!known || known.x <= line.xs[index]) values.set(line.name, { x: line.xs[index], y });
    }
    return `${at}: ${[...values].map(([name, { y }]) => `${name} ${number(y)}`).join(" · ") || "no value"}`;
  };
  const legend = () => {
    const dashed = chart.lines.some((line) => line.style === "dashed");
    return [chart.smoothed && "smoothed", dashed && "dashed: validation"].filter(Boolean).join(" · ");
  };
  const nearest = (x) => xs.reduce((best, at) => (Math.abs(at - x) < Math.abs(best - x) ? at : best), xs[0]);
  const move = (x) => {
    cursor.x = x;
    cursor.kind = chart.x;
    moved();
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
    const known = chart.lines.flatMap((line) => line.ys).filter((y) => y !== null);
    const ys = known.length ? known : [0]; // where no value is a number, nothing is drawn but the axis
    const [low, high] = [Math.min(...ys), Math.max(...ys)];
    const height = low > 0 && cursor.logarithmic?.() ? Math.log : (value) => value;
    const middle = height === Math.log ? Math.sqrt(high * low) : (high + low) / 2;
    const first = chart.x === "seconds" ? xs[0] : 0;
    const last = xs[xs.length - 1];
    const span = last - first || 1;
    const inner = width - CHART.left - CHART.right;
    const bottom = CHART.height - CHART.bottom;
    const y = (value) => CHART.top + (bottom - CHART.top) * (high > low ? (height(high) - height(value)) / (height(high) - height(low)) : 0.5);
    const x = (value) => CHART.left + (inner * (value - first)) / span;
    scale = { x, y, back: (pixel) => first + ((pixel - CHART.left) * span) / inner };
    const parts = [];
    for (const [value, at] of !known.length ? [] : high > low ? [[high, CHART.top], [middle, y(middle)], [low, bottom]] : [[low, y(low)]]) {
      parts.push(shape("line", { x1: CHART.left, x2: width - CHART.right, y1: at, y2: at, class: "tfos-grid" }));
      parts.push(shape("text", { x: CHART.left - 6, y: at + 4, "text-anchor": "end" }, number(Number(value.toPrecision(3)))));
    }
    const unit = chart.x === "seconds" ? (value) => `${Math.round(value)} s` : (value) => number(Math.round(value * 10) / 10);
    parts.push(shape("text", { x: CHART.left, y: CHART.height - 3 }, unit(first)));
    parts.push(shape("text", { x: width - CHART.right, y: CHART.height - 3, "text-anchor": "end" }, chart.x === "seconds" ? unit(last) : `epoch ${unit(last)}`));
    for (const line of chart.lines) {
      const path = pathOf(line.xs.map((at, index) => [at, line.ys[index]]), scale);
      const tone = line.tone ? { style: `stroke: ${line.tone}` } : {};
      parts.push(shape("path", { d: path, class: `tfos-line tfos-${line.style}`, ...tone }));
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
    write(readout, shown ? value : chart ? legend() : "");
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
      root.setAttribute("aria-label", `${chart.name} by ${chart.x === "seconds" ? "time" : "epoch"}${chart.smoothed ? ", smoothed" : ""}`);
      root.setAttribute("aria-valuemax", xs.length - 1);
      paint();
    },
  };
}
