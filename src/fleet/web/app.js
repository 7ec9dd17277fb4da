// The page: reads the same API as everybody else, every two seconds, with the reader's own token.
// Text from the service goes in as text nodes only; nothing is ever parsed as HTML.

const POLL_MS = 2000;
const NODES_READ = 500;
const NODES_SHOWN = 60;
const LINES = 20;
const KEPT = "fleet.session";

const at = (id) => document.getElementById(id);
const state = { session: null, timer: 0, outcome: "", filter: "", nodes: [], nextNodes: false, epoch: 0 };

class Refusal extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
  }
}

function element(tag, classes, ...children) {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  for (const child of children) if (child !== null && child !== undefined) made.append(child);
  return made;
}

async function ask(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (state.session) headers.Authorization = `Bearer ${state.session.token}`;
  const answer = await fetch(path, {
    ...options,
    headers,
    cache: "no-store",
    signal: AbortSignal.timeout(10000),
  });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refusal(answer.status, body);
  return body;
}

// --- signing in -----------------------------------------------------------------------------------------------

function remember(session) {
  state.session = session;
  if (session) sessionStorage.setItem(KEPT, JSON.stringify(session));
  else sessionStorage.removeItem(KEPT);
}

function showLogin(problem = "") {
  state.epoch += 1;
  clearTimeout(state.timer);
  remember(null);
  for (const id of ["board", "who", "live"]) at(id).hidden = true;
  at("login").hidden = false;
  at("login-problem").textContent = problem;
  at("key").value = "";
  at(at("namespace").value ? "key" : "namespace").focus();
}

function showBoard() {
  at("login").hidden = true;
  for (const id of ["board", "who", "live"]) at(id).hidden = false;
  at("who-name").textContent = state.session.namespace;
  at("nodes-section").hidden = !isAdmin();
  state.epoch += 1;
  refresh(state.epoch);
}

const isAdmin = () => state.session.namespace === "system";

async function signIn(event) {
  event.preventDefault();
  const namespace = at("namespace").value.trim();
  const key = at("key").value.trim();
  at("login-problem").textContent = "";
  try {
    const answer = await ask("/auth", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ namespace, key }),
    });
    remember({ namespace, token: answer.token });
    at("key").value = "";
    showBoard();
  } catch (error) {
    at("login-problem").textContent =
      error instanceof Refusal ? error.message : "The service does not answer.";
  }
}

// --- reading --------------------------------------------------------------------------------------------------

async function refresh(epoch) {
  clearTimeout(state.timer);
  if (epoch !== state.epoch) return;
  if (!document.hidden) {
    try {
      await readAll(epoch);
      if (epoch === state.epoch) live(true, `live ${new Date().toLocaleTimeString()}`);
    } catch (error) {
      if (epoch !== state.epoch) return;
      if (error instanceof Refusal && error.status === 401) return showLogin("Your sign-in has run out.");
      live(false, error instanceof Refusal ? error.message : "the service does not answer; trying again");
    }
  }
  if (epoch === state.epoch) state.timer = setTimeout(() => refresh(epoch), POLL_MS);
}

async function readAll(epoch) {
  const outcome = state.outcome ? `&outcome=${state.outcome}` : "";
  const [decisions, instances, nodes, cluster] = await Promise.all([
    ask(`/decisions?limit=${LINES}${outcome}`),
    ask(`/instances?limit=${LINES}`),
    isAdmin() ? ask(`/nodes?limit=${NODES_READ}`) : null,
    isAdmin() ? ask("/admin/cluster-capacity") : null,
  ]);
  if (epoch !== state.epoch) return;
  if (nodes) {
    state.nodes = nodes.items;
    state.nextNodes = nodes.next_cursor !== null;
    drawNodes();
  }
  drawTiles(cluster, instances);
  drawInstances(instances);
  drawDecisions(decisions.items);
}

function live(good, text) {
  at("live").classList.toggle("lost", !good);
  at("live-text").textContent = text;
}

// --- drawing --------------------------------------------------------------------------------------------------

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const number = (value) => (value === null || value === undefined ? "unknown" : grouped.format(value));
const mebibytes = (value) =>
  value === null || value === undefined
    ? "unknown"
    : value >= 10240
      ? `${grouped.format(value / 1024)} GiB`
      : `${grouped.format(value)} MiB`;
const gibibytes = (value) =>
  value === null || value === undefined
    ? "unknown"
    : value >= 10240
      ? `${grouped.format(value / 1024)} TiB`
      : `${grouped.format(value)} GiB`;

function ago(iso) {
  const seconds = Math.max(0, Math.round((Date.now() - Date.parse(iso)) / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

function tile(what, figure, rest) {
  return element(
    "div",
    "tile",
    element("p", "what", what),
    element("p", "figure", figure),
    element("p", "rest", rest),
  );
}

function drawTiles(cluster, instances) {
  const more = instances.next_cursor ? "+" : "";
  const tiles = [];
  if (cluster) {
    const active = state.nodes.filter((node) => node.state === "active").length;
    const out = state.nodes.filter((node) => node.scheduling !== "enabled").length;
    tiles.push(
      tile(
        "Nodes active",
        `${active} of ${state.nodes.length}${state.nextNodes ? "+" : ""}`,
        out ? `${out} cordoned or draining` : "all take instances",
      ),
    );
    for (const [name, label, show] of [
      ["cpus", "vCPUs", number],
      ["memory_mb", "Memory", mebibytes],
      ["disk_gb", "Disk", gibibytes],
    ]) {
      const used = cluster[`unclaimed_used_${name}`] + cluster[`claimed_${name}`];
      const total = cluster[`total_${name}`];
      const share = total
        ? `${Math.round((100 * used) / total)} % of ${show(total)}`
        : total === null
          ? "no limit"
          : "no node counts yet";
      tiles.push(tile(`${label} committed`, show(used), share));
    }
  }
  tiles.push(
    tile(
      "Instances",
      `${instances.items.length}${more}`,
      instances.next_cursor ? `the latest ${LINES} are below` : "deleted ones are not counted",
    ),
  );
  at("tiles").replaceChildren(...tiles);
}

function badge(text, kind) {
  return element("span", `badge ${kind || ""}`, text);
}

function stateBadges(node) {
  const kind = { active: "good", created: "", missing: "warn", error: "bad" }[node.state];
  const badges = [badge(node.state, kind)];
  if (node.scheduling !== "enabled") badges.push(badge(node.scheduling, "warn"));
  return badges;
}

function bar(name, committed, measured, limit, unit) {
  const [show, word] = unit(Math.max(limit || 0, committed));
  const seen = measured === undefined || measured === null ? "" : ` · measured ${show(measured)}`;
  const amount = limit === null ? show(committed) : `${show(committed)} of ${show(limit)}`;
  const text = `${amount}${word && ` ${word}`}${limit === null ? ", no limit" : ""}${seen}`;
  const row = element("div", "bar", element("span", "name", name));
  row.title = `${name}: ${text}`;
  if (limit !== null) row.append(track(committed, measured, Math.max(limit, 1), limit));
  row.append(element("span", "figures", text));
  return row;
}

function track(committed, measured, scale, limit) {
  const share = (value) => `${Math.min(100, (100 * value) / scale).toFixed(1)}%`;
  const line = element("span", "track");
  const fill = element("span", "fill");
  if (committed > limit) fill.classList.add("over");
  else if (committed >= 0.9 * limit && committed > 0) fill.classList.add("near");
  fill.style.width = share(committed);
  line.append(fill);
  if (measured !== null && measured !== undefined) {
    const tick = element("span", "tick");
    tick.style.left = `calc(${share(measured)} - 1px)`;
    line.append(tick);
  }
  return line;
}

// One unit for all figures of a bar, chosen by the largest of them.
const plain = (word) => () => [number, word];
const inMebibytes = (largest) =>
  largest >= 10240 ? [(value) => grouped.format(value / 1024), "GiB"] : [number, "MiB"];
const inGibibytes = (largest) =>
  largest >= 10240 ? [(value) => grouped.format(value / 1024), "TiB"] : [number, "GiB"];

function drawNode(node) {
  const metrics = node.metrics;
  const known = (name) => (typeof metrics[name] === "number" ? metrics[name] : null);
  // What is on the disk and is not foreign is the instances'; the limit leaves the foreign part out as well.
  const disk =
    known("disk_total_gb") !== null && known("disk_free_gb") !== null
      ? Math.max(0, metrics.disk_total_gb - metrics.disk_free_gb - (known("disk_foreign_gb") || 0))
      : null;
  const title = element("h3", "", node.name);
  title.title = node.name;
  const age = element(
    "span",
    "about",
    node.sample_age_seconds === null ? "no sample" : `${Math.round(node.sample_age_seconds)} s ago`,
  );
  age.title = "age of the last sample";
  const card = element("article", "node", element("header", "", title, ...stateBadges(node), age));
  const row = node.capacity;
  if (row === null) {
    card.append(element("p", "unknown", "Not sized: takes instances after its first sample."));
    return card;
  }
  card.append(
    bar("vCPUs", row.used.cpus, known("cpu_total_instance_vcpus"), row.limit.cpus, plain("")),
    bar(
      "Memory",
      row.used.memory_mb,
      known("memory_total_instance_actual"),
      row.limit.memory_mb,
      inMebibytes,
    ),
    bar("Disk", row.used.disk_gb, disk, row.limit.disk_gb, inGibibytes),
    bar("Instances", row.used.instances, known("instances_active"), row.limit.instances, plain("")),
  );
  if (node.gpu_count) card.append(bar("GPUs", node.gpu_count_used, null, node.gpu_count, plain("")));
  for (const [profile, count] of Object.entries(node.mig_profiles)) {
    card.append(bar(profile, node.mig_profiles_used[profile] || 0, null, count, plain("")));
  }
  return card;
}

function drawNodes() {
  const wanted = state.filter.toLowerCase();
  const words = (node) =>
    [
      node.name,
      node.state,
      node.scheduling,
      node.region,
      ...Object.entries(node.labels).map((pair) => pair.join("=")),
    ]
      .join(" ")
      .toLowerCase();
  const found = state.nodes.filter((node) => !wanted || words(node).includes(wanted));
  at("nodes").replaceChildren(...found.slice(0, NODES_SHOWN).map(drawNode));
  at("nodes-count").textContent = state.nodes.length ? `${found.length}${state.nextNodes ? "+" : ""}` : "";
  at("nodes-empty").hidden = found.length > 0;
  at("nodes-empty").textContent = state.nodes.length
    ? "No node matches the filter."
    : "No node is registered yet: fleet node register NAME";
  const hidden = found.length - NODES_SHOWN;
  at("nodes-more").textContent =
    hidden > 0 || state.nextNodes
      ? `The first ${Math.min(NODES_SHOWN, found.length)} are shown; filter, or use fleet node list for all.`
      : "";
}

const STATES = { running: "good", creating: "", deleting: "", stopped: "warn", error: "bad" };

function drawInstances(page) {
  const rows = page.items.map((instance) => {
    const name = element("td", "", instance.name);
    if (instance.namespace !== state.session.namespace)
      name.append(element("div", "sub", instance.namespace));
    if (instance.error) name.append(element("div", "sub", instance.error));
    name.title = instance.uuid;
    return element(
      "tr",
      "",
      name,
      element("td", "", badge(instance.state, STATES[instance.state])),
      element("td", "", instance.node || "–"),
      element("td", "number cpus", number(instance.cpus)),
      element("td", "number", mebibytes(instance.memory_mb)),
      element("td", "number", gibibytes(instance.disk_gb)),
      element("td", "", ago(instance.created_at)),
    );
  });
  at("instances").replaceChildren(...rows);
  at("instances-table").hidden = rows.length === 0;
  at("instances-empty").hidden = rows.length > 0;
  at("instances-count").textContent = page.next_cursor ? `latest ${rows.length}` : "";
}

function drawDecisions(items) {
  const list = at("decisions");
  const there = new Map([...list.children].map((line) => [line.dataset.id, line]));
  const lines = items.map((item) => {
    const line = there.get(item.id) || decisionLine(item);
    line.querySelector(".when").textContent = `${ago(item.created_at)} ago`;
    return line;
  });
  list.replaceChildren(...lines);
  at("decisions-empty").hidden = items.length > 0;
  at("decisions-empty").textContent = state.outcome ? "Nothing was refused." : "No decision yet.";
}

function decisionLine(item) {
  const refused = item.outcome === "refused";
  const head = element(
    "div",
    "line",
    badge(refused ? item.code || "refused" : item.outcome, refused ? "bad" : "good"),
  );
  if (item.node) head.append(element("strong", "", item.node));
  if (item.namespace !== state.session.namespace) head.append(element("span", "owner", item.namespace));
  head.append(element("span", "when"));
  const more = element("details", "", element("summary", "sentence", item.summary));
  more.addEventListener("toggle", () => more.open && more.childElementCount === 1 && explain(item.id, more));
  const line = element("li", "", head, more);
  line.dataset.id = item.id;
  return line;
}

const WISHES = [
  ...["gpus", "gpu_kind", "gpu_profile", "region", "arch"],
  ...["placement", "affinity", "placement_rules", "sleep_after_idle_seconds"],
];

/** What a request asks for beside its size, as it was written. */
function wishes(wanted) {
  const text = (value) => (typeof value === "object" ? JSON.stringify(value) : value);
  return WISHES.filter((name) => wanted[name]).map((name) => `${name} ${text(wanted[name])}`);
}

async function explain(id, into) {
  const list = element("dl");
  into.append(list);
  const add = (term, text) => list.append(element("dt", "", term), element("dd", "", text));
  try {
    const decision = await ask(`/decisions/${id}`);
    const wanted = decision.request;
    const sizes = `${wanted.cpus} vCPU, ${mebibytes(wanted.memory_mb)}, ${gibibytes(wanted.disk_gb || 0)}`;
    add("asked", [sizes, ...wishes(wanted)].join(", "));
    for (const [stage, reasons] of Object.entries(decision.record.dropped)) {
      for (const [reason, names] of Object.entries(reasons)) {
        const total = decision.record.counts[stage][reason];
        add(stage, `${total} dropped, ${reason}: ${names.slice(0, 6).join(", ")}${total > 6 ? ", …" : ""}`);
      }
    }
    const ranked = decision.record.ranked.slice(0, 8);
    const unnamed = decision.record.ranked_total - ranked.length;
    if (ranked.length) add("ranked", `${ranked.join(", ")}${unnamed > 0 ? ` and ${unnamed} more` : ""}`);
    const by = { operator: " (an operator can)" };
    const remedies = (decision.record.remedies || []).map((one) => one.text + (by[one.by] || ""));
    for (const text of remedies.length ? remedies : [decision.record.remedy]) if (text) add("would help", text);
    add("strategy", decision.record.strategy);
  } catch (error) {
    add("", error.message);
  }
}

// --- the beginning --------------------------------------------------------------------------------------------

at("login").addEventListener("submit", signIn);
at("leave").addEventListener("click", () => showLogin());
at("filter").addEventListener("input", (event) => {
  state.filter = event.target.value;
  drawNodes();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && state.session) refresh(state.epoch);
});
for (const button of document.querySelectorAll(".switch button")) {
  button.addEventListener("click", () => {
    state.outcome = button.dataset.outcome;
    for (const other of document.querySelectorAll(".switch button"))
      other.setAttribute("aria-pressed", String(other === button));
    refresh(state.epoch);
  });
}
try {
  state.session = JSON.parse(sessionStorage.getItem(KEPT));
} catch {
  state.session = null;
}
if (state.session && state.session.token) showBoard();
else showLogin();
