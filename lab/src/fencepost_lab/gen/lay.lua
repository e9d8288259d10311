-- Lay down locks that are held, as take.lua grants them to those who ask alone, and note how far this has come.
-- KEYS: progress, each lock, the counter of all of them or of each
-- ARGV: ttl in ms, progress afterwards, the holder of each lock
-- Answers: how many of the locks were free.
-- needs: clock, mint
local count = #ARGV - 2
local own = #KEYS > count + 2
local ttl, now, free = ARGV[1], clock(), 0
for index = 1, count do
    local lock = KEYS[index + 1]
    if redis.call('EXISTS', lock) == 0 then
        local token = mint(KEYS[count + 1 + (own and index or 1)], now)
        redis.call('SET', lock, ARGV[index + 2] .. ':' .. token, 'PX', ttl)
        free = free + 1
    end
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ttl)
return free
