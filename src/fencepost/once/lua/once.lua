-- Carry out a run's commands and remember its result, in one step, unless it was made before.
-- KEYS: the run, then the keys of the commands.
-- ARGV: the result, how long to remember it in ms ('' for no limit), then for each command the number of its parts, and
--   the parts.
-- Returns whether this attempt made the run, the result, the error that broke it off, and the commands' replies.
local kept = redis.call('HMGET', KEYS[1], 'result', 'error')
if kept[1] or kept[2] then return {0, kept[1], kept[2], {}} end

local function keep(field, value)
  redis.call('HSET', KEYS[1], field, value)
  if ARGV[2] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
end

local at, replies = 3, {}
while ARGV[at] do
  local size = tonumber(ARGV[at])
  local reply = redis.pcall(unpack(ARGV, at + 1, at + size))
  if type(reply) == 'table' and reply.err then
    -- Redis does not roll back: a failure after the first command must be remembered, or a retry would repeat the
    -- commands before it.
    if #replies == 0 then return reply end
    keep('error', ARGV[at + 1] .. ', its command ' .. (#replies + 1) .. ', failed: ' .. reply.err)
    return {0, false, redis.call('HGET', KEYS[1], 'error'), {}}
  end
  replies[#replies + 1] = reply
  at = at + size + 1
end
keep('result', ARGV[1])
return {1, ARGV[1], false, replies}
