// Log: the last lines of every worker, [rank, text] in the order in which they came.

function log(data) {
  const select = node("select", "tfos-select", { "aria-label": "Show lines of" }, node("option", "", { value: "" }, "All workers"));
  const lines = node("pre", "tfos-log", { tabindex: 0, role: "log", "aria-live": "off", "aria-label": "Last lines" });
  let drawn = null;
  const wanted = node("input", "tfos-select", { type: "search", placeholder: "Lines with …", "aria-label": "Show lines with" });
  let filter = "";
  const draw = () => {
    const entries = data.get("lines");
    if (entries === drawn && entries.length) return;
    drawn = entries;
    const count = data.get("workers").length;
    while (select.options.length <= count) {
      const rank = select.options.length - 1;
      select.append(node("option", "", { value: rank }, `Worker ${rank}`));
    }
    const follows = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 24;
    const part = wanted.value.toLowerCase();
    const nothing = () => {
      if (!data.get("run_id")) return "Lines are shown as soon as there is a run.";
      return data.get("picture").ended ? "Nothing was printed." : "No lines yet.";
    };
    const kept = entries.filter(
      ([rank, text]) => (filter === "" || rank === Number(filter)) && text.toLowerCase().includes(part),
    );
    const prefix = (rank) => (filter === "" && count > 1 ? `[${rank}] ` : "");
    write(lines, kept.map(([rank, text]) => prefix(rank) + text).join("\n") || (entries.length ? "No such lines among the last." : nothing()));
    if (follows) lines.scrollTop = lines.scrollHeight;
  };
  select.addEventListener("change", () => {
    filter = select.value;
    drawn = null;
    draw();
  });
  wanted.addEventListener("input", () => {
    drawn = null;
    draw();
  });
  wanted.addEventListener("keydown", (event) => event.stopPropagation()); // the notebook has commands for letters
  return { root: node("div", "", {}, node("div", "tfos-filters", {}, select, wanted), lines), draw };
}

// TensorBoard: through the Jupyter server where its proxy answers, else straight.

function tensorboard(data) {
  const note = node("p", "tfos-muted", {}, "Opening TensorBoard …");
  const frame = node("iframe", "tfos-board", { title: "TensorBoard", hidden: "" });
  const alone = node("a", "tfos-alone", { target: "_blank", rel: "noopener", hidden: "" }, "Open TensorBoard in a tab of its own");
  let opened = "";
  const answers = (url, options) => fetch(url, options).then((reply) => reply.ok || reply.type === "opaque", () => false);
  const open = async (url) => {
    const element = document.getElementById("jupyter-config-data");
    const base = (element && JSON.parse(element.textContent).baseUrl) ?? document.body.dataset.baseUrl;
    const { port, pathname } = new URL(url);
    const proxied = base && new URL(`${base.replace(/\/*$/, "/")}proxy/${port}${pathname}`, location.href).href;
    if (proxied && (await answers(`${proxied}data/environment`, { credentials: "same-origin" }))) frame.src = proxied;
    else if (await answers(url, { mode: "no-cors" })) frame.src = url;
    else return write(note, `This page cannot reach TensorBoard at ${url}; on a remote machine, install jupyter-server-proxy.`);
    alone.href = frame.src;
    frame.hidden = alone.hidden = false;
    note.hidden = true;
  };
  return {
    root: node("div", "", {}, note, alone, frame),
    draw() {
      const url = data.get("tensorboard_url");
      if (!url || url === opened) return;
      opened = url;
      open(url);
    },
  };
}
