-- Give up one node's share of a lock.
-- KEYS: lock, gone
-- ARGV: the value to give up, such as holder:token or holder:-attempt, or a holder, for every value of its;
--       a holder whose attempts are given up as well ('': none);
--       ms for which a request of either that arrives late is refused (0: none can)
-- Answers: 1 if the first was there, else 0.
if ARGV[3] ~= '0' then
    redis.call('SADD', KEYS[2], ARGV[1], ARGV[2])
    redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
if value == ARGV[1] or string.match(value, '^(.*):%-?%d+$') == ARGV[1] then return redis.call('DEL', KEYS[1]) end
if string.match(value, '^(.*):%-%d+$') == ARGV[2] then redis.call('DEL', KEYS[1]) end
return 0
