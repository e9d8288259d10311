-- Judge an access, run it, and raise the mark, in one step.
-- KEYS: the mark, then the keys of the command.
-- ARGV: token, seq, holder, digest ('' for an enter), the options, then the command, if there is one. In the usual case
--   the options are one '': refuse, no limits, no expected value. Otherwise they are four: whether to refuse ('1' or
--   '0'), the largest jump, the largest first token (each '' for no limit), and what the command's first key must hold
--   ('' anything, '-' nothing, '=' and a value).
-- Returns the verdict, whether the same write was made before, the mark before this access, and the command's reply.
-- For an access that is admitted at the mark's own token, as most are, it returns only the reply, also in a table: the
-- client must not mistake another reply, such as QUEUED, for an admission.
-- Each argument, field and element of an answer costs as much time as the judgement itself: the usual case has few.
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
-- With an expected value, the digest is unique to one call: if it is done, that call was made, and must not run again.
-- A repeated enter leaves the mark as it is, and may read.
if verdict == 'admit' or (verdict == 'replay' and enters) or (not refuses and not (done and expected ~= '')) then
  if expected ~= '' then
    local now = redis.call('GET', KEYS[2])
    if (now and '=' .. now or '-') ~= expected then return {'changed', 0, seen, last, owner, false} end
  end
  -- Run the command before raising the mark: if it fails, the script ends here, and the mark is unchanged.
  if ARGV[command] then reply = redis.call(unpack(ARGV, command)) end
  if verdict == 'admit' then
    if seen ~= token then
      redis.call('HSET', KEYS[1], 'token', token, 'seq', seq, 'holder', holder, 'digest', digest)
    else
      -- A bare token that enters again, with a seq of 0, does not change the mark.
      if seq ~= '0' then redis.call('HSET', KEYS[1], 'seq', seq, 'digest', digest) end
      return {reply}
    end
  end
end
return {verdict, done and 1 or 0, seen, last, owner, reply}
