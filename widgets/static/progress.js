// Head: what runs, how far it is, what came out so far.

function header(data, own, stops = true) {
  const mark = node("span", "tfos-mark", { "aria-hidden": "true" });
  const headline = node("strong", "tfos-headline", { role: "status" });
  const about = node("span", "tfos-muted");
  const elapsed = node("span", "tfos-muted");
  const stop = stopButton(data, own);
  return {
    root: node("div", "tfos-header", {}, mark, headline, about, node("span", "tfos-aside", {}, elapsed, stop.root)),
    draw() {
      const picture = data.get("picture");
      const lost = own.gone && !picture.ended;
      write(mark, PHASE_MARKS[picture.phase] ?? "");
      write(headline, lost ? `${picture.headline}, until the kernel went` : picture.headline);
      write(about, [picture.name, picture.strategy].filter(Boolean).join(" · "));
      write(elapsed, picture.elapsed);
      stop.draw();
      if (!stops) stop.root.hidden = true;
    },
  };
}

// While a cell runs the kernel hears no widget, so the page asks the Jupyter server to interrupt it.
// The kernel of a detached run is free, and is told by a message.
async function interrupt(data) {
  if (data.get("detached")) {
    data.send({ ask: "stop" });
    return true;
  }
  const element = document.getElementById("jupyter-config-data");
  const config = element ? JSON.parse(element.textContent) : {};
  const base = config.baseUrl ?? document.body.dataset.baseUrl;
  const kernel = data.get("kernel_id");
  if (!base || !kernel) return false;
  const xsrf = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/);
  const headers = { "Content-Type": "application/json" };
  if (xsrf) headers["X-XSRFToken"] = decodeURIComponent(xsrf[1]);
  if (config.token) headers.Authorization = `token ${config.token}`;
  const url = new URL(`${base.replace(/\/*$/, "/")}api/kernels/${encodeURIComponent(kernel)}/interrupt`, location.href);
  return fetch(url, { method: "POST", credentials: "same-origin", headers }).then((reply) => reply.ok, () => false);
}

// By itself, it `stays` where nothing runs, and cannot be pressed.
function stopButton(data, own, stays = false) {
  const root = node("button", "tfos-stop", { type: "button" });
  let state = "ready"; // ready, asked, again, impossible
  let drawn = "";
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
    const heard = await interrupt(data);
    if (heard) setTimeout(() => { if (state === "asked") { state = "again"; show(); } }, STOP_PATIENCE);
    else state = "impossible";
    show();
  });
  show();
  return {
    root,
    draw() {
      const picture = data.get("picture");
      if (picture.name !== drawn || (picture.ended && state !== "ready")) {
        drawn = picture.name;
        state = "ready";
        show();
      }
      if (picture.phase === "stopping" && state === "ready") { state = "again"; show(); }
      root.hidden = own.gone || (picture.ended && !stays);
      root.disabled = picture.ended;
    },
  };
}

function overallBar(data, own) {
  const done = node("div", "tfos-bar-done");
  const range = { role: "progressbar", "aria-label": "All epochs", "aria-valuemin": 0, "aria-valuemax": 100 };
  const bar = node("div", "tfos-bar", range, done);
  const position = node("span", "");
  const right = node("span", "tfos-nowrap");
  const line = node("div", "tfos-position tfos-muted", {}, position, right);
  return {
    root: node("div", "tfos-overall", {}, bar, line),
    draw() {
      const picture = data.get("picture");
      const known = picture.fraction !== null && picture.fraction !== undefined;
      const share = Math.floor(100 * (picture.fraction ?? 0));
      bar.classList.toggle("tfos-bar-unknown", !known && !picture.ended && !own.gone);
      if (known) bar.setAttribute("aria-valuenow", share);
      else bar.removeAttribute("aria-valuenow");
      done.style.transform = `scaleX(${picture.fraction ?? 0})`;
      write(position, picture.position);
      write(right, [own.gone ? "" : picture.remaining, known ? `${share}%` : ""].filter(Boolean).join(" · "));
    },
  };
}

function metrics(data) {
  const root = node("div", "tfos-metrics", { role: "list", "aria-label": "Metrics" });
  const make = () => node("div", "tfos-metric", { role: "listitem" }, node("span", "tfos-muted"), node("strong", "tfos-value"));
  const draw = (pair, metric) => {
    write(pair.firstElementChild, metric.name);
    write(pair.lastElementChild, metric.text);
  };
  return {
    root,
    draw() {
      const picture = data.get("picture");
      const pace = picture.pace ? [{ name: "pace", text: picture.pace }] : [];
      fill(root, [...picture.metrics, ...pace], make, draw);
    },
  };
}
