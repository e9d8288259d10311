// What each line of a trace says, in words. kind: plain, good, bad (refused), worse (corruption), fault, quiet.
const VERDICTS = { stale: "a newer token has been seen", clash: "another holder used that token", late: "a later write of the same lease came first", missing: "it has no token" };

const name = (who) => (who === "service" || who === "store" ? "The lock service" : who ?? "Everything");

const forgotten = ({ t, tail }) => (!tail ? "" : tail >= t ? ", without its data" : `, without its last ${tail} s`);

const FAULTS = {
  pause: (line) => `${name(line.who)} stops${line.for ? ` for ${line.for} s` : ""}: a pause`,
  resume: (line) => `${name(line.who)} goes on`,
  kill: (line) => `${name(line.who)} is killed`,
  restart: (line) => `${name(line.who)} is started again${forgotten(line)}`,
  cut: (line) => `${name(line.who)} is cut off from ${line.from ?? "all"}`,
  heal: (line) => `${name(line.who)} is connected again`,
  skew: (line) => `The clock of ${line.who} now runs at ${line.rate ?? 1} times its speed`,
  jump: (line) => `The clock of ${line.who ?? "the service"} jumps by ${line.by} s`,
  slow: (line) => `The next message of ${line.who} takes ${line.by} s longer`,
  failover: (line) => `Failover: another machine takes over from ${/^r\d/.test(line.who) ? line.who : "the lock service"}`,
  lose: () => "The lock service loses its counter",
  evict: () => "The lock is taken from its holder by force",
  calm: () => "All faults end",
};

const token = (line) => (line.token === undefined || line.token === null ? "" : ` (token ${line.token})`);

function access(line) {
  if (line.verdict && !["admit", "replay"].includes(line.verdict)) {
    const why = VERDICTS[line.verdict] ?? line.verdict;
    const offer = line.token === null ? "without a token" : `with token ${line.token}`;
    return { kind: "bad", text: `✗ Refused: ${line.do} of ${line.who} ${offer}, mark ${line.mark ?? "none"} (${line.verdict}: ${why})` };
  }
  if (line.do !== "write") return { kind: "quiet", text: `${line.who} ${line.do === "enter" ? "enters and reads" : "reads"}${token(line)}` };
  if (line.verdict === "replay") return { kind: "plain", text: `Repeated write of ${line.who}${token(line)}: already applied` };
  const lost = line.overwrote ? ", an update is lost" : "";
  if (line.corrupt || line.overwrote) return { kind: "worse", text: `⚠ Corruption: ${line.who} writes ${line.value}${token(line)}${line.zombie ? ", no longer the holder" : ""}${lost}` };
  if (line.zombie) return { kind: "worse", text: `⚠ Zombie write: ${line.who} writes ${line.value}${token(line)}, no longer the holder` };
  return { kind: "good", text: `✓ ${line.who} writes ${line.value}${token(line)}` };
}

/** Text and kind of a line, or null for those that only the picture shows. */
export function describe(line, owner) {
  const plain = (text) => ({ kind: "plain", text });
  switch (line.ev) {
    case "asked": return plain(`${line.who} asks for the lock`);
    case "acquired": return plain(`${line.who} has the lock${token(line)}`);
    case "lost": return plain(`${line.who} notices that its lease is over: ${line.why}`);
    case "releasing": return plain(`${line.who} gives the lock back${token(line)}`);
    case "released": return line.ok === true ? null : plain(`${line.who}: the release ${line.ok === false ? "came too late" : "got no answer"}`);
    case "timeout": return plain(`${line.who} gives up waiting`);
    case "cancelled": return plain(`${line.who} is told to stop waiting`);
    case "failed": return plain(`${line.who} could not acquire: ${line.why}`);
    case "unrenewed": return plain(`${line.who} cannot renew: no answer`);
    case "heeded": return plain(`${line.who} looks at its lease and stops: ${line.why}`);
    case "bumped": return plain(`${line.who} raises the issuer above ${line.above}`);
    case "granted": return plain(`Service: ${owner(line.holder)} holds now${token(line)}`);
    case "freed": return plain(`Service: ${owner(line.holder)} holds no longer${token(line)}: ${line.how}`);
    case "renewed": return { kind: "quiet", text: `${line.who} renews${token(line)}` };
    case "wrote": return line.outcome === "unknown" ? plain(`${line.who} does not know whether its write was done`) : null;
    case "access": return access(line);
    case "fault": return { kind: "fault", text: (FAULTS[line.do] ?? (() => line.do))(line) };
    default: return null;
  }
}
