-- Judge an access, run it, and raise the mark, in one step.
-- KEYS: the mark, then the keys of the command.
-- ARGV: token, seq, holder, digest ('' for an enter), then '' for what is usual: to refuse, without limits, whatever the
--   command's first key holds. Otherwise whether to refuse ('1' or '0'), and three more: the largest jump and the largest
--   first token ('' for none), what the command's first key must hold ('' anything, '-' nothing, '=' and a value). Then
--   the command, if there is one.
-- Answers the verdict, whether this very write was made before, the mark as it was, and the command's reply. If it was
-- admitted at the mark's own token, as most are, it answers the reply alone, in a table like all other answers: what
-- comes in their place, such as QUEUED, must not be taken for an admission.
-- An argument, a field and an element of an answer each cost as much as the judgement: the usual case has few.
local token, seq, holder, digest = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local refuses, jump, first, expected, command = true, '', '', '', 6
if ARGV[5] ~= '' then
  refuses, jump, first, expected, command = ARGV[5] == '1', ARGV[6], ARGV[7], ARGV[8], 9
end

-- Numbers here are doubles, exact only below 2^53: decimal text is compared by length, then by digits.
local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local mark = redis.call('HMGET', KEYS[1], 'token', 'seq', 'holder')
local seen, last, owner = mark[1], mark[2], mark[3]
local verdict
if not seen then
  verdict = (first ~= '' and less(first, token)) and 'leap' or 'admit'
elseif seen ~= token then
  if less(token, seen) then
    verdict = 'stale'
  else
    -- A limit on leaps need not be exact to the last digit.
    verdict = (jump ~= '' and tonumber(token) - tonumber(seen) > tonumber(jump)) and 'leap' or 'admit'
  end
elseif holder ~= owner then
  verdict = holder == '' and 'stale' or 'clash'
elseif seq == '0' then
  verdict = 'admit'
elseif seq == last then
  verdict = holder == '' and 'stale' or 'replay'
else
  verdict = less(seq, last) and 'late' or 'admit'
end
local enters = digest == ''
local done = verdict == 'replay' and not enters and digest == redis.call('HMGET', KEYS[1], 'digest')[1]
local reply = false
-- A digest that goes with an expected value is this very call's: it was made, and must not be made again.
-- An enter that is repeated raises nothing, and reads.
if verdict == 'admit' or (verdict == 'replay' and enters) or (not refuses and not (done and expected ~= '')) then
  if expected ~= '' then
    local now = redis.call('GET', KEYS[2])
    if (now and '=' .. now or '-') ~= expected then return {'changed', 0, seen, last, owner, false} end
  end
  -- The command comes first: if it fails, the script ends there, and the mark is as it was.
  if ARGV[command] then reply = redis.call(unpack(ARGV, command)) end
  if verdict == 'admit' then
    if seen ~= token then
      redis.call('HSET', KEYS[1], 'token', token, 'seq', seq, 'holder', holder, 'digest', digest)
    else
      -- A bare token that enters again, with a seq of 0, leaves the mark.
      if seq ~= '0' then redis.call('HSET', KEYS[1], 'seq', seq, 'digest', digest) end
      return {reply}
    end
  end
end
return {verdict, done and 1 or 0, seen, last, owner, reply}
