-- Run a command without judging it, if its first key still holds what the client read.
-- KEYS: the keys of the command.
-- ARGV: what the first key must hold ('' anything, '-' nothing, '=' and a value); then the command.
-- Returns whether the command ran, and its reply.
if ARGV[1] ~= '' then
  local now = redis.call('GET', KEYS[1])
  if (now and '=' .. now or '-') ~= ARGV[1] then return {0, false} end
end
return {1, redis.call(unpack(ARGV, 2))}
