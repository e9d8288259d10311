-- Judge an access, run it, and raise the mark, in one step.
-- KEYS: the mark, then the keys of the command.
-- ARGV: token, seq, holder, digest ('' for an enter), whether to refuse ('1' or '0'), the largest jump and the largest first
--   token ('' for none), what the command's first key must hold ('' anything, '-' nothing, '=' and a value); then the
--   command, if there is one.
-- Answers the verdict, whether this very write was made before, the mark as it was, and the command's reply.
local token, seq, holder, digest = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local refuses, jump, first, expected = ARGV[5] == '1', ARGV[6], ARGV[7], ARGV[8]

-- Numbers here are doubles, exact only below 2^53: decimal text is compared by length, then by digits.
local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local mark = redis.call('HMGET', KEYS[1], 'token', 'seq', 'holder', 'digest')
local seen, last, owner, kept = mark[1], mark[2], mark[3], mark[4]
local verdict
if not seen then
  verdict = (first ~= '' and less(first, token)) and 'leap' or 'admit'
elseif less(seen, token) then
  -- A limit on leaps need not be exact to the last digit.
  verdict = (jump ~= '' and tonumber(token) - tonumber(seen) > tonumber(jump)) and 'leap' or 'admit'
elseif less(token, seen) then
  verdict = 'stale'
elseif holder ~= owner then
  verdict = holder == '' and 'stale' or 'clash'
elseif seq == '0' or less(last, seq) then
  verdict = 'admit'
elseif less(seq, last) then
  verdict = 'late'
else
  verdict = holder == '' and 'stale' or 'replay'
end
local enters = digest == ''
local done = verdict == 'replay' and not enters and digest == kept
local reply = false
-- A digest that goes with an expected value is this very call's: it was made, and must not be made again.
-- An enter that is repeated raises nothing, and reads.
if verdict == 'admit' or (verdict == 'replay' and enters) or (not refuses and not (done and expected ~= '')) then
  if expected ~= '' then
    local now = redis.call('GET', KEYS[2])
    if (now and '=' .. now or '-') ~= expected then return {'changed', 0, seen, last, owner, false} end
  end
  -- The command comes first: if it fails, the script ends there, and the mark is as it was.
  if ARGV[9] then reply = redis.call(unpack(ARGV, 9)) end
  if verdict == 'admit' and (not seen or less(seen, token) or less(last, seq)) then
    redis.call('HSET', KEYS[1], 'token', token, 'seq', seq, 'holder', holder, 'digest', digest)
  end
end
return {verdict, done and 1 or 0, seen, last, owner, reply}
